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
// lacks one only for one family can be used for the other.
func (k *kernel) probe(ctx context.Context) error {
	k.lacks = lacking{}
	for _, f := range nft.Families {
		switch err := k.probeFamily(ctx, f); {
		case err == nil:
		case k.lacks.family != nil || !errors.Is(err, dataplane.ErrMissingModule):
			return err
		default:
			k.lacks.family, k.lacks.lacking = err, f
		}
	}
	return nil
}

// probeFamily asks for the matches and targets of one family.
func (k *kernel) probeFamily(ctx context.Context, f *nft.Family) error {
	for _, x := range []struct {
		nft.Extension
		target bool
		lacks  *bool // nil: the backend needs it
	}{
		{xtConntrack, false, nil}, {xtAddrtype, false, nil}, {xtStatistic, false, nil},
		{xtDNAT, true, nil}, {xtMasquerade, true, nil}, {xtMARK, true, nil}, {xtREJECT, true, nil},
		{xtRecent, false, &k.lacks.recent}, {xtSCTP, false, &k.lacks.sctp},
	} {
		err := k.probeExtension(ctx, f, x.Extension, x.target)
		switch {
		case err == nil:
		case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EPROTONOSUPPORT):
			return fmt.Errorf("ask for %s revision %d: %w", x.Name, x.Revision, err)
		case x.lacks == nil:
			return fmt.Errorf("%w xt_%s: the kernel has no %s revision %d for %s: %w",
				dataplane.ErrMissingModule, x.Name, x.Name, x.Revision, f.Name, err)
		default:
			*x.lacks = true
		}
	}
	return nil
}

func (k *kernel) probeExtension(ctx context.Context, f *nft.Family, x nft.Extension,
	target bool) error {
	req := &k.reader.req
	req.Reset()
	object := rawnl.Object{Verb: "find", Kind: "extension", Name: x.Name}
	req.Message(rawnl.SubsysNFTCompat, 0, rawnl.FlagAck, f.NFProto, 0, object)
	req.Text(1, x.Name)    // NFTA_COMPAT_NAME
	req.U32(2, x.Revision) // NFTA_COMPAT_REV
	typ := uint32(0)
	if target {
		typ = 1
	}
	req.U32(3, typ) // NFTA_COMPAT_TYPE
	_, err := k.conn.Query(ctx, req)
	return err
}
