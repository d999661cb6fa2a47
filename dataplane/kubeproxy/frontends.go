package kubeproxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// Frontend is an address and port that kube-proxy serves. For a node port, the address is
// unspecified.
type Frontend struct {
	Key servicemodel.FrontendKey
	// Service names the port of the service, such as "default/web:http". It is empty if
	// kube-proxy's objects do not name the service, as in the ipvs mode.
	Service string
	// Endpoints get the new connections, sorted. Without endpoints, new connections are refused or
	// dropped. If the external traffic policy is Local, these are the endpoints for clients outside
	// the cluster.
	Endpoints []netip.AddrPort
}

// Frontends returns what kube-proxy serves according to its objects in the kernel, in the order of
// the keys. It changes nothing, and needs the same privileges as [Find]. It does not read legacy
// tables of iptables: if these have chains of kube-proxy, the error is an [ErrLegacy]. While
// kube-proxy writes, the result may mix several moments.
func Frontends(ctx context.Context, cfg *Config) ([]Frontend, error) {
	c := contents{}
	err := withKernel(cfg, "read kube-proxy's services",
		func(k *kernel) error { return k.readContents(ctx, c) })
	if err != nil {
		return nil, err
	}
	out := make([]Frontend, 0, len(c))
	for _, f := range c {
		slices.SortFunc(f.Endpoints, netip.AddrPort.Compare)
		f.Endpoints = slices.Compact(f.Endpoints)
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b Frontend) int { return a.Key.Compare(b.Key) })
	return out, nil
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
