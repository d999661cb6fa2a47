package kubeproxy

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// readContents reads the frontends of each mode.
func (k *kernel) readContents(ctx context.Context, c contents) error {
	legacy := &Plan{}
	if err := k.ns.Do(legacy.planLegacy); err != nil {
		return err
	}
	if len(legacy.Left) > 0 {
		return fmt.Errorf("%s: %w", legacy.Left[0].Object, ErrLegacy)
	}
	r, err := k.readRuleset(ctx)
	if err != nil {
		return err
	}
	kernlb := ownerOf(r).kernlb
	for _, f := range nft.Families {
		for _, name := range []string{tableNAT, tableFilter, nftTable} {
			t := TableID{f.Name, name}
			if name == nftTable && !r.has(t, nftChain) || name != nftTable && kernlb {
				continue
			}
			if err := k.readTable(ctx, c, t, f); err != nil {
				return err
			}
		}
	}

	return k.readVirtualFrontends(ctx, c)
}

// readTable reads the frontends of a table.
func (k *kernel) readTable(ctx context.Context, c contents, name TableID, f *nft.Family) error {
	t := &table{family: f, rules: map[string][]rule{}, pools: map[string][]netip.AddrPort{}}
	t.lookup = func(set string) ([]nft.Elem, error) { return k.readElements(ctx, name, set) }
	err := k.query(name).Rules(ctx, "", func(r nft.RuleInfo) error {
		chain := string(r.Chain)
		t.rules[chain] = append(t.rules[chain], decodeRule(f, r))
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

	// KUBE-NODEPORTS of this table contains the health check node ports.
	return t.iptables(c, "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES")
}

// readElements reads a map. A missing map has no elements.
func (k *kernel) readElements(ctx context.Context, t TableID, set string) (
	l []nft.Elem, err error) {
	err = k.query(t).Elements(ctx, set, func(e nft.Elem) error {
		l = append(l, e.Clone())
		return nil
	})
	return l, rawnl.Except(err, unix.ENOENT)
}

// readVirtualFrontends reads the frontends of the ipvs mode: kube-proxy's virtual servers. A node
// port has a virtual server at each address of the node.
func (k *kernel) readVirtualFrontends(ctx context.Context, c contents) error {
	v, err := k.readVirtual(ctx)
	if err != nil || len(v.servers) == 0 {
		return err
	}
	return k.withIPVS(ctx, func(client *ipvsnl.Client) error {
		for _, s := range v.servers {
			if !v.owns(s) {
				continue
			}
			key := s.key()
			f := Frontend{Key: servicemodel.FrontendKey{Addr: key.Addr,
				Protocol: servicemodel.Protocol(key.Protocol), Port: key.Port}}
			if v.nodePort(s) {
				f.Key.Addr = nft.Families[nft.FamilyIndex(key.Addr)].Any
			}
			all, err := client.DestinationsIf(ctx, key)
			if err != nil {
				return err
			}
			for _, d := range all {
				if d.Weight > 0 { // weight 0 only keeps connections
					f.Endpoints = append(f.Endpoints, netip.AddrPortFrom(d.Addr, d.Port))
				}
			}

			slices.SortFunc(f.Endpoints, netip.AddrPort.Compare)
			c.add(f)
		}

		return nil
	})
}

type contents map[servicemodel.FrontendKey]Frontend

// add adds a frontend. A frontend with endpoints replaces a frontend without endpoints, because
// kube-proxy creates rules that drop and rules that balance for the same address.
func (c contents) add(f Frontend) {
	if old, known := c[f.Key]; !known || len(old.Endpoints) == 0 && len(f.Endpoints) > 0 {
		c[f.Key] = f
	}
}

// table holds the rules of a table, and reads its maps.
type table struct {
	family *nft.Family
	rules  map[string][]rule // by chain
	lookup func(set string) ([]nft.Elem, error)
	pools  map[string][]netip.AddrPort // results of endpoints, by chain
}

// iptables adds the frontends of chains of the iptables mode.
func (t *table) iptables(c contents, chains ...string) (err error) {
	for _, chain := range chains {
		for _, r := range t.rules[chain] {
			// Node ports answer at 127.0.0.0/8, too. The rules for that range only count packets.
			if r.port == 0 || !r.protocol.Valid() || r.comment == "" || r.within {
				continue
			}
			f := Frontend{Key: servicemodel.FrontendKey{Addr: cmp.Or(r.addr, t.family.Any),
				Protocol: r.protocol, Port: r.port}}
			f.Service, _, _ = strings.Cut(r.comment, " ")
			if f.Endpoints, err = t.endpoints(r.chain); err != nil {
				return err
			}
			c.add(f)
		}
	}

	return nil
}

// chainService matches the names of chains of services in the nftables mode. Only the names of
// these chains contain the name of the service.
var chainService = regexp.MustCompile(`^(?:service|external)-\w+-(.+)/\w+/(.*)$`)

// nftables adds the frontends of the nftables mode.
func (t *table) nftables(c contents) error {
	for _, set := range []string{"service-ips", "service-nodeports", "no-endpoint-services",
		"no-endpoint-nodeports"} {
		elements, err := t.lookup(set)
		if err != nil {
			return err
		}
		for _, e := range elements {
			r := nft.Reader{Bytes: e.Key}
			f := Frontend{Key: r.Frontend(t.family.Any, strings.HasSuffix(set, "nodeports")),
				Service: nft.CommentOf(e.UserData)}
			if !r.Done() {
				return fmt.Errorf("map %s: unknown key", set)
			}
			if m := chainService.FindStringSubmatch(string(e.Data)); m != nil {
				f.Service = strings.TrimSuffix(m[1]+":"+m[2], ":")
			}
			if f.Endpoints, err = t.endpoints(string(e.Data)); err != nil {
				return err
			}
			c.add(f)
		}
	}

	return nil
}

// endpoints returns the endpoints that a chain selects for clients from outside the cluster,
// sorted. It ignores rules for certain sources, which are for pods and for the node. It does not
// ignore such rules if they jump to a chain for external addresses, because these are the source
// ranges of a load balancer. Each chain and each map is examined once, even if many frontends refer
// to it.
func (t *table) endpoints(chain string) ([]netip.AddrPort, error) {
	if l, known := t.pools[chain]; known {
		return l, nil
	}
	var l []netip.AddrPort
	for _, r := range t.rules[chain] {
		if r.to.IsValid() {
			l = append(l, r.to)
		}
		next := []nft.Elem{{Goto: true, Data: []byte(r.chain)}}
		switch {
		case r.sourced && !strings.HasPrefix(r.chain, "KUBE-EXT-"):
			continue
		case r.lookup != "":
			var err error
			if next, err = t.lookup(r.lookup); err != nil {
				return nil, err
			}
		case r.chain == "":
			continue
		}

		for _, e := range next {
			ep := nft.Reader{Bytes: e.Data}
			if to := ep.Endpoint(t.family.AddrLen); ep.Done() && !e.Goto {
				l = append(l, to)
				continue
			}

			more, err := t.endpoints(string(e.Data))
			if err != nil {
				return nil, err
			}
			l = append(l, more...)
		}
	}

	slices.SortFunc(l, netip.AddrPort.Compare)
	t.pools[chain] = slices.Compact(l)
	return t.pools[chain], nil
}
