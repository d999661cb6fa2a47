package kubeproxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

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
	r, err := k.readRuleset(ctx)
	if err != nil {
		return err
	}
	kernlb := ownerOf(r).kernlb
	for _, f := range nft.Families {
		for _, name := range []string{tableNAT, tableFilter, nftTable} {
			t := tableID{f.Name, name}
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
func (k *kernel) readTable(ctx context.Context, c contents, name tableID, f *nft.Family) error {
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
func (k *kernel) readElements(ctx context.Context, t tableID, set string) (
	l []nft.Elem, err error) {
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
				if d.Weight > 0 { // others only keep their connections
					f.Endpoints = append(f.Endpoints, netip.AddrPortFrom(d.Addr, d.Port))
				}
			}
			c.add(f)
		}
		return nil
	})
}

// contents are frontends by key.
type contents map[servicemodel.FrontendKey]Frontend

// add adds a frontend. One with endpoints wins over one without: kube-proxy has rules that drop and
// rules that balance for the same address.
func (c contents) add(f Frontend) {
	if old, known := c[f.Key]; !known || len(old.Endpoints) == 0 && len(f.Endpoints) > 0 {
		c[f.Key] = f
	}
}

// table has the rules of a table, as [nft.ListRule] writes them, and reads its maps.
type table struct {
	family *nft.Family
	rules  map[string][]string // by chain
	lookup func(set string) ([]nft.Elem, error)
}

// Parts of rules, as nft.ListRule writes them.
var (
	ruleAddress  = regexp.MustCompile(`\bip6? daddr (\S+)`)
	rulePort     = regexp.MustCompile(`\b(tcp|udp|sctp) dport (\d+)\b`)
	ruleComment  = regexp.MustCompile(`/\* (.*) \*/`)
	ruleEndpoint = regexp.MustCompile(`/\* \S+ -> (\S+) \*/|\bdnat to (\S+:\d+)$`)
	// without a condition, or from a source range
	ruleAlways   = regexp.MustCompile(`^(?:counter )?(?:jump|goto) (\S+)$|\bjump (KUBE-EXT-\S+)$`)
	ruleTarget   = regexp.MustCompile(`\b(?:jump|goto) (\S+)$`)
	ruleMap      = regexp.MustCompile(`\bmap @(__map\d+)`)
	chainService = regexp.MustCompile(`^(?:service|external)-\w+-(.+)/\w+/(.*)$`)
	chainPod     = regexp.MustCompile(`^endpoint-.*__(.+)/(\d+)$`)
)

// iptables adds the frontends of chains of the iptables mode.
func (t *table) iptables(c contents, chains ...string) error {
	for _, chain := range chains {
		for _, rule := range t.rules[chain] {
			port, comment := rulePort.FindStringSubmatch(rule), ruleComment.FindStringSubmatch(rule)
			if port == nil || comment == nil {
				continue
			}
			key := servicemodel.FrontendKey{Addr: t.family.Any}
			if a := ruleAddress.FindStringSubmatch(rule); a != nil {
				var err error
				if key.Addr, err = netip.ParseAddr(a[1]); err != nil {
					continue // 127.0.0.0/8, where node ports answer, too
				}
			}
			n, err := strconv.ParseUint(port[2], 10, 16)
			if err != nil || key.Protocol.UnmarshalText([]byte(port[1])) != nil {
				continue
			}
			key.Port = uint16(n)
			f := Frontend{Key: key}
			f.Service, _, _ = strings.Cut(comment[1], " ")
			if to := ruleTarget.FindStringSubmatch(rule); to != nil {
				if f.Endpoints, err = t.endpoints(to[1], 0); err != nil {
					return err
				}
			}
			c.add(f)
		}
	}
	return nil
}

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
			f := Frontend{Key: r.Frontend(t.family.Any, strings.HasSuffix(set, "nodeports"))}
			if !r.Done() {
				return fmt.Errorf("map %s: unknown key", set)
			}
			if m := chainService.FindStringSubmatch(string(e.Data)); m != nil {
				f.Service = strings.TrimSuffix(m[1]+":"+m[2], ":")
			}
			if f.Endpoints, err = t.endpoints(string(e.Data), 0); err != nil {
				return err
			}
			c.add(f)
		}
	}
	return nil
}

// deepest bounds the steps from a frontend's chain to endpoints.
const deepest = 8

// endpoints returns the endpoints to which a chain leads clients from outside the cluster: rules
// for pods and for the node do not count.
func (t *table) endpoints(chain string, depth int) (l []netip.AddrPort, err error) {
	if m := chainPod.FindStringSubmatch(chain); m != nil {
		return appendEndpoint(l, net.JoinHostPort(m[1], m[2])), nil
	}
	if depth == deepest {
		return nil, nil
	}
	for _, rule := range t.rules[chain] {
		if m := ruleEndpoint.FindStringSubmatch(rule); m != nil {
			l = appendEndpoint(l, m[1]+m[2])
			continue
		}
		var next []nft.Elem
		if m := ruleMap.FindStringSubmatch(rule); m != nil {
			if next, err = t.lookup(m[1]); err != nil {
				return nil, err
			}
		}
		if m := ruleAlways.FindStringSubmatch(rule); m != nil {
			next = []nft.Elem{{Goto: true, Data: []byte(m[1] + m[2])}}
		}
		for _, e := range next {
			r := nft.Reader{Bytes: e.Data}
			if ep := r.Endpoint(t.family.AddrLen); r.Done() && !e.Goto {
				l = append(l, ep)
				continue
			}
			more, err := t.endpoints(string(e.Data), depth+1)
			if err != nil {
				return nil, err
			}
			l = append(l, more...)
		}
	}
	return l, nil
}

// appendEndpoint appends an address and port. It leaves out any other text.
func appendEndpoint(l []netip.AddrPort, text string) []netip.AddrPort {
	if ep, err := netip.ParseAddrPort(text); err == nil {
		l = append(l, ep)
	}
	return l
}
