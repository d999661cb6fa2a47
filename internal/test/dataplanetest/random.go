package dataplanetest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/servicemodel"
)

// packetsPerState is the number of packets after each change.
const packetsPerState = 50

// Random applies random states, one random change after the other, and sends random packets. It
// compares the fate of each packet with the oracle, and with the words of its trace. If they
// differ, it reduces the state as long as they still differ, and reports the smallest state.
// Packets is the number of packets of all networks together; 0 means 10,000. The environment
// variable KERNLB_RANDOM_PACKETS overrides it, for example for a long run (1000000). The first
// network uses the seed KERNLB_RANDOM_SEED, by default 0, and each further network the next number.
func Random(t *testing.T, under Backend, packets int) {
	first := fromEnv(t, "KERNLB_RANDOM_SEED", 0, strconv.Atoi)
	packets = fromEnv(t, "KERNLB_RANDOM_PACKETS", cmp.Or(packets, 10000), strconv.Atoi)

	// Networks run in parallel, because a test mostly waits for packets that must not arrive.
	networks := min(max(4, packets/2500), 48)
	for i := range networks {
		seed := uint64(first + i)
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			w := under.network(t)
			r := &random{w: w, t: t, rng: rand.New(rand.NewPCG(seed, 0))}
			r.run(packets / networks)
		})
	}
}

// random is one run of Random.
type random struct {
	w   *world
	t   *testing.T
	rng *rand.Rand
}

func (r *random) run(packets int) {
	g := randstate.New(r.config(), r.rng)
	s := g.State()
	for sent := 0; sent < packets; sent += packetsPerState {
		table := r.apply(s)
		probes := make([]netnstest.Probe, packetsPerState)
		for i := range probes {
			probes[i] = r.probe(table)
		}
		for i, got := range netnstest.SendAll(r.t.Context(), probes) {
			if complaint := r.w.judgeOracle(table, probes[i], got); complaint != "" {
				r.fail(s, probes[i], complaint, sent)
			}
		}

		for range 1 + r.rng.IntN(3) {
			s = g.Change(s)
		}
	}
}

func (r *random) apply(s servicemodel.State) *servicemodel.Table {
	res, err := settled(r.w.engine.Apply(r.t.Context(), s))
	if err != nil {
		plan := "no plan"
		if v, planErr := r.w.engine.Plan(r.t.Context(), s); planErr == nil {
			plan = v.Plan.String()
		}
		r.t.Fatalf("apply: %v\nit would have sent:\n%s", err, plan)
	}

	return res.Changes.New
}

// affinityOfIPVS removes the affinity that IPVS refuses: affinity for all ports of a service, and
// affinity of prefixes at ranges, or if pods and other clients have different endpoints.
func affinityOfIPVS(svc *servicemodel.Service) {
	a := &svc.SessionAffinity
	a.WholeService = false
	ranged := slices.ContainsFunc(svc.Ports, func(p servicemodel.ServicePort) bool {
		return p.EndPort != 0
	})
	if ranged || svc.ExternalTrafficPolicy == servicemodel.PolicyLocal {
		a.Bits4, a.Bits6 = 0, 0
	}
}

// config makes states of the hosts of the network.
func (r *random) config() randstate.Config {
	c := randstate.Config{Services: 10, Weights: true,
		EndpointPorts: []uint16{scenario.PortA, scenario.PortB},
		Ranges:        r.w.under.Ranges, NodeRanges: r.w.under.NodeRanges,
		Shifted: r.w.under.Shifted}
	if r.w.under.MasqueradeIPs {
		c.MasqueradeIPs = givenSources
	}
	switch {
	case r.w.under.OwnConnections:
		c.Edit = affinityOfIPVS
	case c.Ranges:
		c.Edit = randstate.ForRanges
	}

	for _, h := range slices.Concat(r.w.Pods, r.w.RemotePods) {
		node := "this"
		if strings.HasPrefix(h.Name, "remote") {
			node = "other"
		}
		c.Places = append(c.Places, randstate.Place{IPv4: h.IPv4, IPv6: h.IPv6, Node: node,
			Zone: "zone-" + h.Name[len(h.Name)-1:]})
	}

	base := thisNode()
	base.Zone = "zone-1"
	all, cidrs, some, primary := base, podCIDRs(base), podCIDRs(base), base
	cidrs.ServiceCIDRs = prefixes(netnstest.Net.ServiceCIDRv4, netnstest.Net.ServiceCIDRv6)
	some.NodePortAddresses.CIDRs = prefixes("192.0.2.11/32", "2001:db8:2::/64")
	some.MasqueradeAll = true
	primary.NodePortAddresses.Primary = true
	primary.LocalPods.InterfacePrefix = "veth"
	four, six := cidrs, some
	four.OnlyFamily, six.OnlyFamily = servicemodel.IPv4, servicemodel.IPv6
	c.Node, c.Nodes = all, []servicemodel.Node{all, cidrs, some, primary, four, six}
	return c
}

// probe returns a packet, mostly to a frontend, otherwise to a destination close to a frontend.
func (r *random) probe(t *servicemodel.Table) netnstest.Probe {
	p := netnstest.Probe{Proto: netnstest.Protocols()[r.rng.IntN(3)]}
	keys := slices.Collect(t.Frontends())
	family := r.rng.IntN(2)
	switch n := r.rng.IntN(10); {
	case n < 7 && len(keys) > 0:
		k := keys[r.rng.IntN(len(keys))].Key
		p.Proto, p.To = k.Protocol, netip.AddrPortFrom(k.Addr, k.Port)
		if k.NodePort() {
			p.To = netip.AddrPortFrom(r.nodeAddr(k.Addr), k.Port)
		}
	case n == 7 && len(keys) > 0: // another port or protocol of an address
		k := keys[r.rng.IntN(len(keys))].Key
		p.To = netip.AddrPortFrom(k.Addr, uint16(79+r.rng.IntN(4)))
		if k.NodePort() {
			p.To = netip.AddrPortFrom(r.nodeAddr(k.Addr), uint16(30000+r.rng.IntN(48)))
		}
	case n == 8:
		p.To = netip.AddrPortFrom(unusedIP[family], servicePort)
	default: // past kernlb, straight to a server
		h := r.w.Pods[r.rng.IntN(len(r.w.Pods))]
		p.To = netip.AddrPortFrom([]netip.Addr{h.IPv4, h.IPv6}[family], scenario.PortA)
	}

	d := t.Decide(servicemodel.Packet{Protocol: p.Proto, Dst: p.To, FromThisNode: true},
		servicemodel.Locality(r.w.NodeAddrs()))
	if at := p.To; d.Frontend != nil && d.Frontend.Key.EndPort != 0 {
		// Endpoints answer only at these ports.
		ports := []uint16{scenario.PortA, scenario.PortB}
		p.To = netip.AddrPortFrom(at.Addr(), ports[r.rng.IntN(2)])
		if d.Frontend.Shifted {
			p.To = netip.AddrPortFrom(at.Addr(), p.To.Port()+p.To.Port()-
				d.Frontend.Target(firstSlot(t, d.Frontend), p.To.Port()).Port())
		}
	}

	p.From = r.from(p.To.Addr())
	return p
}

// firstSlot returns an endpoint of a frontend, or an address without a port.
func firstSlot(t *servicemodel.Table, f *servicemodel.Frontend) netip.AddrPort {
	for slot := range t.Slots(f) {
		return slot.Endpoint
	}
	return netip.AddrPort{}
}

// from picks a host other than the destination. It never picks a pod of the other node, because
// packets between such pods do not pass this node.
func (r *random) from(to netip.Addr) *netnstest.Host {
	hosts := slices.Concat(r.w.Pods, r.w.Outside, []*netnstest.Host{r.w.Node})
	return pick(r, hosts, func(h *netnstest.Host) bool { return h.IPv4 != to && h.IPv6 != to })
}

func (r *random) nodeAddr(like netip.Addr) netip.Addr {
	return pick(r, r.w.NodeAddrs(), func(a netip.Addr) bool { return a.Is4() == like.Is4() })
}

// pick picks one for which may returns true.
func pick[T any](r *random, from []T, may func(T) bool) T {
	for {
		if v := from[r.rng.IntN(len(from))]; may(v) {
			return v
		}
	}
}

// fail reduces the state while the packet still has a wrong fate, and reports the result.
func (r *random) fail(s servicemodel.State, p netnstest.Probe, complaint string, sent int) {
	wrong := func(s servicemodel.State) string {
		t := r.apply(s)
		for range 4 {
			p.SourcePort = 0
			if c := r.w.judgeOracle(t, p, p.Send(r.t.Context())); c != "" {
				return c
			}
		}

		return ""
	}

	last := wrong(s)
	if last == "" {
		r.t.Fatalf("after %d packets: %s\n(it did not happen again)\n%s", sent, complaint,
			describe(r.apply(s)))
	}

	for svc := range s.Services() {
		if c := wrong(s.WithoutService(svc.Name)); c != "" {
			s, last = s.WithoutService(svc.Name), c
		}
	}

	for svc := range s.Services() {
		for i := 0; i < len(s.Endpoints(svc.Name)); {
			fewer := slices.Delete(s.Endpoints(svc.Name), i, i+1)
			if c := wrong(s.WithEndpoints(svc.Name, fewer)); c != "" {
				s, last = s.WithEndpoints(svc.Name, fewer), c
				continue
			}

			i++
		}
	}

	r.t.Fatalf("after %d packets: %s\nin the smallest state that shows it:\n%s", sent, last,
		describe(r.apply(s)))
}

// describe prints a table.
func describe(t *servicemodel.Table) string { return servicemodel.Diff(nil, t).String() }
