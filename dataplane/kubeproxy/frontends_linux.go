package kubeproxy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// readContents reads the frontends of all modes.
func (k *kernel) readContents(ctx context.Context, c contents) error {
	legacy := &Plan{}
	if err := k.ns.Do(legacy.planLegacy); err != nil {
		return err
	}
	if len(legacy.Left) > 0 {
		return fmt.Errorf("%s: %w", legacy.Left[0].Object, ErrLegacy)
	}
	r := &ruleset{chains: map[Table][]chain{}}
	for i, f := range families {
		if err := k.readChains(ctx, f, r.chains); err != nil {
			return err
		}
		for _, name := range []string{tableNAT, tableFilter, nftTable} {
			t := Table{f, name}
			if name == nftTable && !r.has(t, nftChain) || name != nftTable && ownerOf(r).kernlb {
				continue
			}
			if err := k.readTable(ctx, c, t, nft.Families[i]); err != nil {
				return err
			}
		}
	}
	return k.readVirtualFrontends(ctx, c)
}

// readTable reads the frontends of a table.
func (k *kernel) readTable(ctx context.Context, c contents, name Table, f *nft.Family) error {
	t := &table{family: f, rules: map[string][]string{}}
	t.lookup = func(set string) ([]nft.Elem, error) { return k.readElements(ctx, name, set) }
	err := k.query(name).Rules(ctx, "", func(r nft.RuleInfo) error {
		chain := string(r.Chain)
		t.rules[chain] = append(t.rules[chain], nft.ListRule(f.NFProto, r.Exprs))
		return nil
	})
	switch {
	case err != nil:
		return err
	case name.Name == nftTable:
		return t.nftables(c)
	case name.Name == tableNAT:
		return t.iptables(c, "KUBE-SERVICES", "KUBE-NODEPORTS")
	}
	// KUBE-NODEPORTS of this table has the health check node ports.
	return t.iptables(c, "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES")
}

// readElements reads a map. One that does not exist has no elements.
func (k *kernel) readElements(ctx context.Context, t Table, set string) (l []nft.Elem, err error) {
	err = k.query(t).Elements(ctx, set, func(e nft.Elem) error {
		l = append(l, e.Clone())
		return nil
	})
	return l, rawnl.Except(err, unix.ENOENT)
}

// readVirtualFrontends reads the frontends of the ipvs mode: kube-proxy's virtual servers. A node
// port has one at each address of the node.
func (k *kernel) readVirtualFrontends(ctx context.Context, c contents) error {
	v, err := k.readVirtual(ctx)
	if err != nil || len(v.servers) == 0 {
		return err
	}
	return k.withIPVS(ctx, func(client *ipvsnl.Client) error {
		services, err := client.Services(ctx)
		if err != nil {
			return err
		}
		for _, s := range services {
			own := VirtualServer{s.Protocol.String(), netip.AddrPortFrom(s.Addr, s.Port)}
			if !slices.Contains(v.servers, own) || !v.owns(own) {
				continue
			}
			f := Frontend{Key: servicemodel.FrontendKey{Addr: s.Addr,
				Protocol: servicemodel.Protocol(s.Protocol), Port: s.Port}}
			if v.nodePort(own) {
				f.Key.Addr = nft.Families[nft.FamilyIndex(s.Addr)].Any
			}
			all, err := client.Destinations(ctx, s.ServiceKey)
			if err != nil {
				return err
			}
			for _, d := range all {
				if d.Weight > 0 { // others only keep their connections
					f.Endpoints = append(f.Endpoints, netip.AddrPortFrom(d.Addr, d.Port))
				}
			}
			c.add(f)
		}
		return nil
	})
}
