package kubeproxy

import (
	"context"
	"errors"
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
	t.lookup = func(set string) ([]element, error) { return k.readElements(ctx, name, set) }
	err := k.eachRule(ctx, name, "", func(r *nft.RuleInfo, text string) {
		t.rules[string(r.Chain)] = append(t.rules[string(r.Chain)], text)
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
func (k *kernel) readElements(ctx context.Context, t Table, set string) (l []element, err error) {
	var b rawnl.Batch
	b.Message(rawnl.SubsysNFTables, unix.NFT_MSG_GETSETELEM, 0, nfproto[t.Family], 0,
		rawnl.Object{Verb: "list", Kind: "elements of map", Name: set,
			Within: "table " + t.String()})
	b.Text(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	b.Text(unix.NFTA_SET_ELEM_LIST_SET, set)
	_, err = k.nf.DumpThrough(ctx, &b, func(m rawnl.Message) error {
		it := rawnl.Attrs(m.Attrs)
		for it.Next() {
			if it.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				continue
			}
			list := it.Nest()
			for list.Next() {
				l = append(l, element{
					key:   []byte(raw(list.Nest(), unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)),
					value: []byte(raw(list.Nest(), unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VALUE)),
					chain: nested(list.Nest(), unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VERDICT,
						unix.NFTA_VERDICT_CHAIN)})
			}
		}
		return it.Err()
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return l, err
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
