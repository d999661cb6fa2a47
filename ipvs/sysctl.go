package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/nft"
)

// sysctls are those that the backend sets, as far as they are not in the companion.
type sysctls struct {
	wanted map[string]string // under /proc/sys, to these values
	now    map[string]string // what they were when they were read
	before map[string]string // what those were that are not recorded, if it is known otherwise
}

const (
	sysctlForward = "net/ipv4/ip_forward"
	sysctlIPVS    = "net/ipv4/vs/" // those of IPVS begin with it
)

// wantedSysctls are the sysctls that a configuration sets.
func wantedSysctls(strictARP bool) map[string]string {
	m := map[string]string{
		sysctlIPVS + "conntrack":                 "1",
		sysctlIPVS + "expire_nodest_conn":        "1",
		sysctlIPVS + "expire_quiescent_template": "1",
		sysctlForward:                            "1",
	}
	if strictARP {
		m["net/ipv4/conf/all/arp_ignore"] = "1"
		m["net/ipv4/conf/all/arp_announce"] = "2"
	}
	return m
}

// sysctlNames are all that a configuration can set. Their order is part of what is in the kernel.
var sysctlNames = slices.Sorted(maps.Keys(wantedSysctls(true)))

// unsettled says what of the rule, the route and the sysctls is not as it should be.
func (b *Backend) unsettled() ([]string, error) {
	l, err := b.net.misled()
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(b.sysctls.wanted)) {
		if now, want := b.sysctls.now[name], b.sysctls.wanted[name]; now != want {
			l = append(l, fmt.Sprintf("sysctl %s is %s, not %s", name, now, want))
		} else if _, known := b.comp.sysctls[name]; !known {
			l = append(l, fmt.Sprintf("what sysctl %s was is not recorded", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.comp.sysctls)) {
		if b.sysctls.wanted[name] == "" {
			l = append(l, fmt.Sprintf("sysctl %s is set, and need not be", name))
		}
	}
	return l, nil
}

// restore sets sysctls to what they were, unless that may take away what somebody else relies on.
func (b *Backend) restore(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	others, err := b.othersSysctls(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		was := b.comp.sysctls[name]
		now, err := b.net.readSysctl(name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && now == was {
			continue
		}
		if err != nil {
			return err
		}
		why, err := b.reliedOn(ctx, name, others)
		if err != nil {
			return err
		}
		if why == "" && now != wantedSysctls(true)[name] {
			why = "somebody else has set it since"
		}
		if why != "" {
			b.cfg.Logger.Info("sysctl is left as it is", "backend", Name, "table", b.cfg.Table,
				"sysctl", name, "is", now, "was", was, "since", why)
			continue
		}
		if err := b.net.setSysctls(map[string]string{name: was}); err != nil {
			return err
		}
	}
	return nil
}

// reliedOn says why somebody else may rely on what a sysctl was set to; nothing if there is no sign
// of it.
func (b *Backend) reliedOn(ctx context.Context, name string, others map[string]string) (why string,
	err error) {
	if _, ok := others[name]; ok {
		return "another instance needs it", nil
	}
	switch {
	case strings.HasPrefix(name, sysctlIPVS) && len(b.foreign) > 0:
		return "there are virtual servers of others", nil
	case name == sysctlForward:
		forwards, err := b.othersForward(ctx)
		if forwards {
			why = "others have rules about forwarded packets"
		}
		return why, err
	}
	return "", nil
}

// othersSysctls returns what other instances have recorded that sysctls were.
func (b *Backend) othersSysctls(ctx context.Context) (map[string]string, error) {
	var req nfnl.Batch
	req.Message(nfnl.SubsysNFTables, nft.MsgGetTable, 0, nft.IPv4.NFProto, 0,
		nfnl.Object{Verb: "read", Kind: "tables"})
	var tables []string
	err := b.nf.DumpOwn(ctx, &req, func(m nfnl.Message) error {
		it := nfnl.Attrs(m.Attrs)
		for it.Next() {
			if it.Type() == 1 && it.Text() != b.cfg.Table { // NFTA_TABLE_NAME
				tables = append(tables, it.Text())
			}
		}
		return it.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("look for other instances: %w", err)
	}
	all := map[string]string{}
	for _, t := range tables {
		elems, err := b.readElements(ctx, nft.IPv4, t, setSettings)
		if errors.Is(err, syscall.ENOENT) || errors.Is(err, errMisread) {
			continue // it is not one of ours
		}
		if err != nil {
			return nil, fmt.Errorf("look for other instances: %w", err)
		}
		_, recorded, _ := parseSettings(elems)
		maps.Copy(all, recorded)
	}
	return all, nil
}

// Families of base chains that see forwarded packets of IP.
const (
	protoInet = 1  // NFPROTO_INET
	protoIPv4 = 2  // NFPROTO_IPV4
	protoIPv6 = 10 // NFPROTO_IPV6
)

// othersForward reports whether somebody else has rules about forwarded packets: a firewall, or a
// program that runs containers. Such a program found ip_forward at 1, and may have left it at that.
func (b *Backend) othersForward(ctx context.Context) (bool, error) {
	if b.net.usesIptables() {
		return true, nil
	}
	var req nfnl.Batch
	req.Message(nfnl.SubsysNFTables, nft.MsgGetChain, 0, 0, 0,
		nfnl.Object{Verb: "read", Kind: "chains"})
	found := false
	err := b.nf.DumpOwn(ctx, &req, func(m nfnl.Message) error {
		c, err := nft.DecodeChain(m.Attrs)
		ip := m.Family == protoInet || m.Family == protoIPv4 || m.Family == protoIPv6
		if err == nil && ip && c.Table != b.cfg.Table && c.Type != "" &&
			c.Hook == nft.HookForward {
			found = true
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("look for rules about forwarded packets: %w", err)
	}
	return found, nil
}
