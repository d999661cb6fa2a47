package iptables

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// probe asks the kernel for the revisions of matches and targets (NFNL_MSG_COMPAT_GET,
// include/uapi/linux/netfilter/nfnetlink_compat.h). The request loads their modules. A kernel that
// lacks one only for IPv6 can be used for IPv4.
func (k *kernel) probe(ctx context.Context) error {
	for _, f := range nft.Families {
		for _, x := range []struct {
			extension
			target bool
			lacks  *bool // nil: the backend needs it
		}{
			{xtConntrack, false, nil}, {xtAddrtype, false, nil}, {xtStatistic, false, nil},
			{xtDNAT, true, nil}, {xtMasquerade, true, nil}, {xtMARK, true, nil},
			{xtREJECT, true, nil},
			{xtRecent, false, &k.lacks.recent}, {xtSCTP, false, &k.lacks.sctp},
			{xtBPF, false, &k.lacks.bpf},
		} {
			err := k.probeExtension(ctx, f, x.extension, x.target)
			switch {
			case err == nil:
			case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EPROTONOSUPPORT):
				return fmt.Errorf("ask for %s revision %d: %w", x.name, x.revision, err)
			case x.lacks == nil:
				err = fmt.Errorf("%w xt_%s: the kernel has no %s revision %d for %s: %w",
					dataplane.ErrMissingModule, x.name, x.name, x.revision, f.Name, err)
				if f == nft.IPv6 { // IPv4 was asked before
					k.lacks.ipv6, err = err, nil
				}
				return err
			default:
				*x.lacks = true
			}
		}
	}
	return nil
}

func (k *kernel) probeExtension(ctx context.Context, f *nft.Family, x extension,
	target bool) error {
	req := &k.reader.req
	req.Reset()
	object := rawnl.Object{Verb: "find", Kind: "extension", Name: x.name}
	req.Message(rawnl.SubsysNFTCompat, 0, rawnl.FlagAck, f.NFProto, 0, object)
	req.Text(1, x.name)    // NFTA_COMPAT_NAME
	req.U32(2, x.revision) // NFTA_COMPAT_REV
	typ := uint32(0)
	if target {
		typ = 1
	}
	req.U32(3, typ) // NFTA_COMPAT_TYPE
	_, err := k.conn.Query(ctx, req)
	return err
}
