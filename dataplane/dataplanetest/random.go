package dataplanetest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/randstate"
	"github.com/kernlb/kernlb/servicemodel"
)

// RandomOptions tunes [Random]. The environment variables KERNLB_RANDOM_PACKETS and
// KERNLB_RANDOM_SEED overrule the test's own numbers: a long run is KERNLB_RANDOM_PACKETS=1000000.
type RandomOptions struct {
	// Seed is the first seed; each network takes the next.
	Seed uint64
	// Packets is how many packets are sent in all. Zero means 10,000.
	Packets int
	// Networks is how many networks work side by side; most of a test's time is waiting for packets
	// that must not come. Zero means one for 2,500 packets, at least 4 and at most 48.
	Networks int
}

// packetsPerState is how many packets are sent after each change.
const packetsPerState = 50

// Random applies random states, one random change after the other, sends random packets, and
// compares what becomes of each with the oracle, and with the words of its trace. When they differ,
// it makes the state smaller while they still do, and reports that.
func Random(t *testing.T, under Backend, o RandomOptions) {
	under.need(t)
	netnstest.Require(t)
	o.Seed = uint64(fromEnv(t, "KERNLB_RANDOM_SEED", int(o.Seed)))
	o.Packets = fromEnv(t, "KERNLB_RANDOM_PACKETS", cmp.Or(o.Packets, 10000))
	o.Networks = cmp.Or(o.Networks, min(max(4, o.Packets/2500), 48))
	for i := range o.Networks {
		seed := o.Seed + uint64(i)
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			w, err := newWorld(t.Context(), under, Options{})
			if err != nil {
				t.Fatalf("build the network: %v", err)
			}
			defer w.close()
			r := &random{w: w, t: t, rng: rand.New(rand.NewPCG(seed, 0))}
			r.run(o.Packets / o.Networks)
		})
	}
}

// fromEnv is the number in an environment variable, or the number given.
func fromEnv(t *testing.T, name string, otherwise int) int {
	v := os.Getenv(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 {
		t.Fatalf("%s=%s: want a number", name, v)
	}
	return n
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
	res, err := r.w.engine.Apply(r.t.Context(), s)
	if err != nil {
		plan := "no plan"
		if v, planErr := r.w.engine.Plan(r.t.Context(), s); planErr == nil {
			plan = v.Plan.String()
		}
		r.t.Fatalf("apply: %v\nit would have sent:\n%s", err, plan)
	}
	return res.Changes.New
}

// config makes states of the hosts of the network.
func (r *random) config() randstate.Config {
	c := randstate.Config{Services: 10, EndpointPorts: []uint16{PortA, PortB}, Weights: true}
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
	cidrs.ServiceCIDRs = prefixes(netnstest.ServiceCIDRv4, netnstest.ServiceCIDRv6)
	some.NodePortAddresses.CIDRs = prefixes("192.0.2.11/32", "2001:db8:2::/64")
	some.MasqueradeAll = true
	primary.NodePortAddresses.Primary = true
	primary.LocalPods.InterfacePrefix = "veth"
	c.Node, c.Nodes = all, []servicemodel.Node{all, cidrs, some, primary}
	return c
}

// probe makes a packet: most often to a frontend, else to something near one.
func (r *random) probe(t *servicemodel.Table) netnstest.Probe {
	p := netnstest.Probe{Proto: netnstest.Protocols()[r.rng.IntN(3)]}
	keys := slices.Collect(t.Frontends())
	family := r.rng.IntN(2)
	switch n := r.rng.IntN(10); {
	case n < 7 && len(keys) > 0:
		k := keys[r.rng.IntN(len(keys))].Key
		p.Proto, p.To = netnstest.Protocol(k.Protocol), k.AddrPort()
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
		p.To = netip.AddrPortFrom([]netip.Addr{h.IPv4, h.IPv6}[family], PortA)
	}
	p.From = r.from(p.To.Addr())
	return p
}

// from picks a host to send from: not a pod of the other node, whose packets to one another never
// come back through this one.
func (r *random) from(to netip.Addr) *netnstest.Host {
	hosts := slices.Concat(r.w.Pods, r.w.Outside, []*netnstest.Host{r.w.Node})
	for {
		h := hosts[r.rng.IntN(len(hosts))]
		if h.IPv4 != to && h.IPv6 != to {
			return h
		}
	}
}

func (r *random) nodeAddr(like netip.Addr) netip.Addr {
	for {
		a := r.w.NodeAddrs()[r.rng.IntN(len(r.w.NodeAddrs()))]
		if a.Is4() == like.Is4() {
			return a
		}
	}
}

// fail makes the state smaller while the packet still meets another fate than it should, and
// reports.
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
