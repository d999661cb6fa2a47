package flows_test

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/test/must"
	sm "github.com/kernlb/kernlb/servicemodel"
)

var _ dataplane.Flows = (*flows.Keeper)(nil)

// fakeTable is a conntrack table in memory. It counts the dumps.
type fakeTable struct {
	mu    sync.Mutex
	flows []conntrack.Flow
	addrs []netip.Addr
	dumps int
	err   error
}

func (f *fakeTable) Clean(_ context.Context, m *conntrack.Matcher, o conntrack.CleanOptions) (
	c conntrack.CleanResult, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dumps++
	c.Dumps = 1
	if f.err != nil {
		return c, f.err
	}
	kept := f.flows[:0:0]
	for i := range f.flows {
		switch fl := &f.flows[i]; {
		case !m.Stale(fl):
			kept = append(kept, *fl)
			continue
		case fl.Translated():
			c.Misdirected++
		default:
			c.Untranslated++
		}

		o.Stale(&f.flows[i])
		c.Deleted++
	}

	f.flows = kept
	return c, nil
}

func (f *fakeTable) NodeAddrs(ranges []netip.Prefix) ([]netip.Addr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var in []netip.Addr
	for _, a := range f.addrs {
		if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) }) {
			in = append(in, a)
		}
	}

	return in, f.err
}

func (f *fakeTable) Flows(_ context.Context, filter conntrack.Filter) iter.Seq2[conntrack.Flow,
	error] {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dumps++
	return func(yield func(conntrack.Flow, error) bool) {
		for fl, err := range conntrack.All(f.flows...) {
			if filter.Match(&fl) && !yield(fl, err) {
				return
			}
		}

		if f.err != nil {
			yield(conntrack.Flow{}, f.err)
		}
	}
}

func (f *fakeTable) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// put adds flows, given as "udp 10.96.0.10:53 > 10.244.0.1:5353". Without ">" a flow is not
// translated.
func (f *fakeTable) put(list ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range list {
		f.flows = append(f.flows, parse(s))
	}
}

func parse(s string) (f conntrack.Flow) {
	proto, rest, _ := strings.Cut(s, " ")
	f.Protocol = map[string]conntrack.Protocol{"udp": conntrack.UDP, "tcp": conntrack.TCP,
		"sctp": conntrack.SCTP}[proto]
	to, by, translated := strings.Cut(rest, " > ")
	f.Original.Dst = netip.MustParseAddrPort(to)
	f.Reply.Src = f.Original.Dst
	if translated {
		f.Reply.Src = netip.MustParseAddrPort(by)
	}
	client := "198.51.100.1:4000"
	if f.Original.Dst.Addr().Is6() {
		client = "[2001:db8:51::1]:4000"
	}
	f.Original.Src = netip.MustParseAddrPort(client)
	f.Reply.Dst = f.Original.Src
	return f
}

// text is the inverse of put.
func text(f conntrack.Flow) string {
	s := fmt.Sprintf("%s %s", f.Protocol, f.Original.Dst)
	if f.Translated() {
		s += fmt.Sprintf(" > %s", f.Reply.Src)
	}
	return s
}

func (f *fakeTable) list() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := []string{}
	for _, fl := range f.flows {
		l = append(l, text(fl))
	}
	return l
}

// world is an engine with a keeper, a kernel and a conntrack table.
type world struct {
	*fakeTable
	kernel *memory.Backend
	keeper *flows.Keeper
	engine *dataplane.Engine
	cfg    flows.Config
}

func newWorld(t *testing.T, cfg flows.Config) *world {
	w := &world{cfg: cfg, fakeTable: &fakeTable{
		addrs: must.Addrs("192.0.2.10", "192.0.2.11", "2001:db8:2::10")}}
	w.kernel = memory.New(nil)
	w.restart(t)
	return w
}

// restart replaces the program; the kernel and its conntrack table stay.
func (w *world) restart(t *testing.T) {
	t.Helper()
	w.keeper = ok(flows.New(w.fakeTable, &w.cfg))(t)
	w.kernel = memory.New(w.kernel.Kernel())
	w.engine = dataplane.New(w.kernel, &dataplane.Config{Flows: w.keeper})
}

func (w *world) apply(t *testing.T, s sm.State) *dataplane.Result {
	t.Helper()
	return ok(w.engine.Apply(t.Context(), s))(t)
}

// settle does all work that becomes due later.
func (w *world) settle(t *testing.T) {
	t.Helper()
	for next := time.Duration(1); next > 0; {
		time.Sleep(next)
		next = ok(w.engine.Settle(t.Context()))(t)
	}
}

var dns = sm.Name{Namespace: "default", Name: "dns"}

// service is "dns" with a port of UDP and one of TCP, at a cluster IP, an external IP and node
// ports.
func service(edit ...func(*sm.Service)) *sm.Service {
	s := &sm.Service{
		Name: dns, ClusterIPs: must.Addrs("10.96.0.10", "fd00:10:96::10"),
		ExternalIPs: must.Addrs("203.0.113.5"),
		Ports: []sm.ServicePort{
			{Name: "dns", Protocol: sm.UDP, Port: 53, NodePort: 30053},
			{Name: "web", Protocol: sm.TCP, Port: 80, NodePort: 30080},
		},
	}
	for _, f := range edit {
		f(s)
	}
	return s
}

// endpoints are at 10.244.0.host and fd00:244::host.
func endpoints(hosts ...int) (l []sm.Endpoint) {
	for _, h := range hosts {
		for _, a := range must.Addrs(fmt.Sprint("10.244.0.", h), fmt.Sprint("fd00:244::", h)) {
			l = append(l, sm.Endpoint{Addr: a, Ports: []sm.EndpointPort{
				{Name: "dns", Protocol: sm.UDP, Port: 5353}, {Name: "web", Protocol: sm.TCP,
					Port: 8080},
			}})
		}
	}

	return l
}

func each(l []sm.Endpoint, edit func(*sm.Endpoint)) []sm.Endpoint {
	for i := range l {
		edit(&l[i])
	}
	return l
}

func terminating(e *sm.Endpoint) { e.Condition = sm.Serving }
func ended(e *sm.Endpoint)       { e.Condition = sm.Terminating }

// node is a node that takes node ports at one address of each family.
var node = sm.Node{Name: "n1", Addresses: must.Addrs("192.0.2.10", "2001:db8:2::10"),
	NodePortAddresses: sm.NodePortAddresses{Primary: true}}

// serving is a state of the service on the node.
func serving(svc *sm.Service, eps ...[]sm.Endpoint) sm.State {
	return sm.State{}.WithNode(node).WithService(svc).WithEndpoints(svc.Name, slices.Concat(eps...))
}

// ok returns what a call returned, which must not have failed: ok(call())(t).
func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }

// errOf returns the error of a call.
func errOf[T any](_ T, err error) error { return err }

// unsettled returns a function that returns r, whose later work failed.
func unsettled(r *dataplane.Result, err error) func(testing.TB) *dataplane.Result {
	return func(t testing.TB) *dataplane.Result {
		t.Helper()
		require.NoError(t, err)
		require.Error(t, r.Unsettled)
		return r
	}
}
