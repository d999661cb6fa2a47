package dataplanetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// part is the state of an owner: the service of that name in the namespace of that name.
func part(owner string, ips [2]netip.Addr, hosts ...string) servicemodel.State {
	return state(podCIDRs(thisNode()), web(named(owner, ips), func(s *servicemodel.Service) {
		s.Name.Namespace = owner
	}), eps(hosts...))
}

// parts runs do on parts, like a new program that then ends. It returns the kernel's table after
// that.
func (w *world) parts(t *testing.T, do func(p *dataplane.Parts) error) *servicemodel.Table {
	t.Helper()
	b := opened(w.under.Open(w.Node.NS.NetNS()))(t)
	table := ok(conntrack.Open(&conntrack.Config{NetNS: w.Node.NS.NetNS()}))(t)
	defer table.Close()
	keeper := ok(flows.New(table, nil))(t)
	must(t, do(dataplane.NewParts(b, &dataplane.PartsConfig{Flows: keeper})))
	o, err := b.Observe(t.Context(), nil)
	if err != nil || len(o.Drift) > 0 {
		t.Fatalf("drift %v, %v", o.Drift, err)
	}
	return o.Table
}

func (w *world) applyPart(t *testing.T, owner string, s servicemodel.State) *servicemodel.Table {
	t.Helper()
	return w.parts(t, func(p *dataplane.Parts) error {
		return errOf(settled(p.Apply(t.Context(), owner, s)))
	})
}

func (w *world) applyParts(t *testing.T, s map[string]servicemodel.State) *servicemodel.Table {
	t.Helper()
	return w.parts(t, func(p *dataplane.Parts) error {
		r, err := settled(p.ApplyAll(t.Context(), s))
		if err == nil && len(r.Refused) > 0 {
			t.Error(r.Refused)
		}
		return err
	})
}

func (w *world) requireChecks(t *testing.T, table *servicemodel.Table, checks ...[]scenario.Check) {
	t.Helper()
	for _, l := range checks {
		for _, c := range w.check(t, table, l) {
			t.Error(c)
		}
	}
}

// sharedInstance starts and ends programs that share one instance, each with its own services.
func sharedInstance(t *testing.T, w *world) {
	one, two := part("one", clusterIP, "pod1"), part("two", clusterIP2, "pod2")
	ofOne := ask("pod1", cluster, masqueraded("pod1")) // to itself
	w.requireChecks(t, w.applyPart(t, "one", one), ofOne, ask("pod2", cluster2, untouched))
	w.requireChecks(t, w.applyPart(t, "two", two), ofOne, ask("pod3", cluster2, reaches("pod2")))

	w.requireChecks(t, w.parts(t, func(p *dataplane.Parts) error {
		_, err := settled(p.Apply(t.Context(), "three", part("three", clusterIP2, "pod3")))
		var taken *servicemodel.TakenError
		if !errors.As(err, &taken) || taken.Holder.Name.Namespace != "two" {
			t.Errorf("two holds that: %v", err)
		}
		return nil
	}), ofOne, ask("pod3", cluster2, reaches("pod2")))

	// Both owners have pod1. The pod can reach itself as long as one of these owners exists.
	w.requireChecks(t, w.applyPart(t, "two", part("two", clusterIP2, "pod1")), ofOne,
		ask("pod1", cluster2, masqueraded("pod1")))
	w.requireChecks(t, w.parts(t, func(p *dataplane.Parts) error {
		return errOf(p.Remove(t.Context(), "two", "nobody", "two"))
	}), ofOne, ask("pod3", cluster2, untouched))

	// Addresses move between the owners in one commit, and back.
	w.applyPart(t, "two", two)
	swapped := map[string]servicemodel.State{"one": part("one", clusterIP2, "pod1"),
		"two": part("two", clusterIP, "pod2")}
	w.requireChecks(t, w.applyParts(t, swapped), ask("pod3", cluster, reaches("pod2")),
		ask("pod3", cluster2, reaches("pod1")))
	w.requireChecks(t, w.applyParts(t, map[string]servicemodel.State{"one": one, "two": two}),
		ofOne, ask("pod3", cluster2, reaches("pod2")))

	table := w.parts(t, func(p *dataplane.Parts) error {
		return errOf(p.Keep(t.Context(), func(owner string) bool { return owner == "two" }))
	})
	w.requireChecks(t, table, ask("pod3", cluster, untouched),
		ask("pod3", cluster2, reaches("pod2")))

	// The settings of the instance change while two holds something.
	node := podCIDRs(thisNode())
	node.ServiceCIDRs = prefixes(netnstest.Net.ServiceCIDRv4, netnstest.Net.ServiceCIDRv6)
	table = w.parts(t, func(p *dataplane.Parts) error {
		return errOf(p.Configure(t.Context(), node))
	})
	w.requireChecks(t, table, ask("pod3", cluster, dropped),
		ask("pod3", cluster2, reaches("pod2")))
	w.parts(t, func(p *dataplane.Parts) error {
		held, err := p.Get(t.Context(), "two")
		if held.Len() == 0 || held.Len() != table.Len() {
			t.Errorf("two holds %d frontends of %d", held.Len(), table.Len())
		}
		return err
	})

	// The instance is removed with the last part. The next part brings its own settings.
	table = w.parts(t, func(p *dataplane.Parts) error {
		return errOf(p.Remove(t.Context(), "two"))
	})
	if table.Len() > 0 || table.Rules().MasqueradeMark != 0 {
		t.Errorf("left: %s with the settings %+v", describe(table), table.Rules())
	}
	w.requireChecks(t, table, ask("pod3", cluster, untouched), ask("pod3", cluster2, untouched))
	w.requireChecks(t, w.applyPart(t, "one", one), ofOne)
	table = w.applyPart(t, "one", servicemodel.State{})
	if table.Rules().MasqueradeMark != 0 {
		t.Errorf("left by an empty part: %+v", table.Rules())
	}
}

// programsAtOnce runs programs that change their owners' services at the same time. Each call must
// succeed, and in the end the kernel must hold the last state of each program.
func programsAtOnce(t *testing.T, w *world) {
	last := make([]servicemodel.State, 6)
	owner := func(i int) string { return fmt.Sprint("owner-", i) }
	var programs sync.WaitGroup
	for i := range last {
		programs.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 6))
			for range 6 {
				b, err := w.under.Open(w.Node.NS.NetNS())
				if err != nil {
					t.Error(err)
					return
				}

				p := dataplane.NewParts(b, nil)
				last[i] = servicemodel.State{}
				if rng.IntN(3) == 0 {
					_, err = p.Remove(t.Context(), owner(i))
				} else {
					ips := pair(fmt.Sprint("10.96.1.", i+1), fmt.Sprint("fd00:10:96::1:", i+1))
					last[i] = part(owner(i), ips, []string{"pod1", "pod2", "remote1"}[rng.IntN(3)])
					_, err = settled(p.Apply(t.Context(), owner(i), last[i]))
				}

				if err := errors.Join(err, b.Close()); err != nil {
					t.Errorf("program %d: %v", i, err)
				}
			}
		})
	}

	programs.Wait()
	table := w.parts(t, func(*dataplane.Parts) error { return nil })
	var want servicemodel.State
	for i, s := range last {
		want = want.WithNode(podCIDRs(thisNode())).WithPart(owner(i), s)
	}
	all := ok(servicemodel.Resolve(nil, want))(t)
	if c := servicemodel.Diff(table, all.Arrange(table)); !c.Empty() {
		t.Errorf("not what was applied last:\n%s", c)
	}
}

// interrupted is a backend without turns that calls a function once, after its first reading.
type interrupted struct {
	backends.Backend
	call func()
}

func (b *interrupted) Unwrap() backends.Backend             { return b.Backend }
func (b *interrupted) Lock(context.Context) (func(), error) { return func() {}, nil }
func (b *interrupted) Cleanup(c context.Context) (backends.Stats, error) {
	b.interrupt()
	return b.Backend.Cleanup(c)
}
func (b *interrupted) Commit(ctx context.Context, c *servicemodel.ChangeSet) (backends.Stats,
	error) {
	b.interrupt()
	return b.Backend.Commit(ctx, c)
}

func (b *interrupted) interrupt() {
	if call := b.call; call != nil {
		b.call = nil
		call()
	}
}

// lastPartGoes removes the only part of an instance. In between, a program that did not wait for
// its turn publishes another part. That part must stay.
func lastPartGoes(t *testing.T, w *world) {
	w.applyPart(t, "one", part("one", clusterIP, "pod1"))
	b := &interrupted{Backend: opened(w.under.Open(w.Node.NS.NetNS()))(t)}
	b.call = func() { w.applyPart(t, "two", part("two", clusterIP2, "pod2")) }
	must(t, errOf(dataplane.NewParts(b, nil).Remove(t.Context(), "one")))
	table := w.parts(t, func(*dataplane.Parts) error { return nil })
	w.requireChecks(t, table, ask("pod3", cluster, untouched),
		ask("pod3", cluster2, reaches("pod2")))
	must(t, errOf(dataplane.NewParts(b, nil).Remove(t.Context(), "two")))
}

// sharedFlows tests a UDP client that keeps its source port while the owner of a service removes
// the service and publishes it again for another pod.
func sharedFlows(t *testing.T, w *world) {
	client := netnstest.Probe{From: w.hosts["outside1"], Proto: servicemodel.UDP,
		To: netip.AddrPortFrom(clusterIP[0], servicePort), SourcePort: 40000}
	for _, host := range []string{"pod2", "pod3"} {
		w.applyPart(t, "one", part("one", clusterIP, host))
		if got := client.Send(t.Context()); got.Server != serverName(host, scenario.PortA) {
			t.Errorf("published for %s: %s", host, got)
		}
		w.parts(t, func(p *dataplane.Parts) error {
			return errOf(p.Remove(t.Context(), "one"))
		})
	}
}
