package dataplanetest

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/busywriter"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/servicemodel"
)

// FieldsOptions bounds [EveryField].
type FieldsOptions struct {
	// OneValue gives each field a single value that the backend accepts, and applies each state
	// again once. By default each field has several values, each of them with two traffic policies,
	// and the first of these states is applied again twice.
	OneValue bool
	// Refused lists, in order, the fields for which the backend refuses some value, such as
	// "service.Scheduler". It must refuse no other fields. Nil allows any fields. With OneValue,
	// the list is not compared.
	Refused []string
	// Ranges also varies the fields of a service with a range of ports. MasqueradeIPs also varies
	// the fields of a service that gives the sources of masqueraded connections.
	Ranges, MasqueradeIPs bool
	// New returns what opens the backend in one more network namespace, instead of Backend.Open.
	New func() func(ns netns.Namespace) (backends.Backend, error)
	// Second opens another instance of the backend in a network namespace, or another backend. With
	// it, the engine also switches there and back with some of the states.
	Second func(ns netns.Namespace) (backends.Backend, error)
}

// For one field in switchedEach, an engine also switches between the backends. With
// KERNLB_TEST_FAULTS=all, it does so for every field.
const switchedEach = 8

// EveryField applies states that differ in the value of one field, for every field. A state that
// the backend accepts must be read back unchanged, with a hint and without, in any order of
// endpoints. After a commit of another program, an engine reads the state once. No program may see
// a difference, a drift or a repair. When another process removes an endpoint, or everything, the
// engine repairs exactly that damage.
func EveryField(t *testing.T, under Backend, o FieldsOptions) {
	under.need(t)
	everyField(t, o, func(t *testing.T) (*fields, netns.Namespace) {
		network := ok(netnstest.New(t.Context(), netnstest.Options{}))(t)
		t.Cleanup(func() { network.Close() })
		node, open := network.Node.NS.NetNS(), under.Open
		if o.New != nil {
			open = o.New()
		}
		return &fields{
			open:  func() (backends.Backend, error) { return open(node) },
			touch: func() error { return busywriter.Once(t.Context(), node) },
		}, node
	})
}

// fieldGroups is the number of groups of fields that are tried side by side.
const fieldGroups = 4

// everyField is EveryField for the kernels that newKernel makes, one for each group of fields.
func everyField(t *testing.T, o FieldsOptions,
	newKernel func(t *testing.T) (*fields, netns.Namespace)) {
	least := 100
	if o.OneValue = o.OneValue || testing.Short(); o.OneValue {
		least = 50
	}
	groups := make([]*fields, fieldGroups)
	passed := t.Run("fields", func(t *testing.T) {
		for i := range groups {
			t.Run(fmt.Sprint("group ", i), func(t *testing.T) {
				t.Parallel()
				f, ns := newKernel(t)
				groups[i] = f
				f.T, f.refused = t, map[string]bool{}
				f.engine = dataplane.New(opened(f.open())(t), nil)
				f.try(o, i, ns)
			})
		}
	})
	if !passed {
		return
	}

	applied, refused := 0, map[string]bool{}
	for _, f := range groups {
		applied += f.applied
		maps.Copy(refused, f.refused)
	}
	if applied < least {
		t.Errorf("only %d states were accepted", applied)
	}
	names := slices.Sorted(maps.Keys(refused))
	if o.Refused != nil && !o.OneValue && !slices.Equal(names, o.Refused) {
		t.Errorf("refused are values of %q, not of %q", names, o.Refused)
	}
}

// try applies the states of a group of fields.
func (f *fields) try(o FieldsOptions, group int, ns netns.Namespace) {
	f.Helper()
	each := switchedEach
	if os.Getenv("KERNLB_TEST_FAULTS") == "all" {
		each = 1
	}
	bases := []servicemodel.State{fieldState(servicemodel.PolicyLocal),
		fieldState(servicemodel.PolicyCluster)}
	if o.Ranges {
		bases = append(bases, withRange(bases[0]))
	}

	number, had := map[string]int{}, map[string]bool{} // of each field
	for _, base := range bases {
		if o.MasqueradeIPs {
			base = withMasqueradeIPs(base)
		}
		for _, v := range randstate.Variants(base, fieldName) {
			if _, known := number[v.Name]; !known {
				number[v.Name] = len(number)
			}
			n := number[v.Name]
			again := 1
			if !o.OneValue && !had[v.Name] {
				again = 2
			}
			if n%fieldGroups != group || o.OneValue && had[v.Name] || !f.held(v, again) {
				continue
			}

			if f.applied++; !had[v.Name] {
				f.repaired(v, f.applied%2 == 0)
				if o.Second != nil && n/fieldGroups%each == 0 {
					f.switched(v, func() (backends.Backend, error) { return o.Second(ns) })
					f.switched(v, f.open)
				}
			}

			had[v.Name] = true
		}
	}

	if n := f.engine.Status().Totals.Repairs; n != len(had) {
		f.Errorf("%d repairs of %d damages", n, len(had))
	}
}

var fieldName = servicemodel.Name{Namespace: "default", Name: "web"}

// fieldState sets all fields that can be set together.
func fieldState(external servicemodel.TrafficPolicy) servicemodel.State {
	addr := netip.MustParseAddr
	svc := &servicemodel.Service{
		Name: fieldName, ClusterIPs: []netip.Addr{addr("10.96.0.1"), addr("fd00:10:96::1")},
		ExternalIPs:     []netip.Addr{addr("203.0.113.5")},
		HostIPs:         []netip.Addr{addr("192.0.2.10")},
		LoadBalancerIPs: []servicemodel.LoadBalancerIP{{Addr: addr("203.0.113.6")}},
		Ports: []servicemodel.ServicePort{{Name: "http", Protocol: servicemodel.TCP, Port: 80,
			NodePort: 30080}},
		SessionAffinity:       servicemodel.SessionAffinity{ClientIP: true},
		ExternalTrafficPolicy: external,
	}
	if external == servicemodel.PolicyLocal {
		svc.HealthCheckNodePort = 32000
	}
	var eps []servicemodel.Endpoint
	for _, a := range []string{"10.244.1.1", "10.244.1.2", "fd00:10:244::1"} {
		eps = append(eps, servicemodel.Endpoint{Addr: addr(a),
			Node: "node", Zone: "zone", Ports: []servicemodel.EndpointPort{{Name: "http",
				Protocol: servicemodel.TCP, Port: 8080}}})
	}

	node := servicemodel.Node{Name: "node", Zone: "zone"}
	return servicemodel.State{}.WithNode(node).WithService(svc).WithEndpoints(fieldName, eps)
}

// withMasqueradeIPs gives the sources of masqueraded connections.
func withMasqueradeIPs(s servicemodel.State) servicemodel.State {
	svc := s.Service(fieldName)
	svc.MasqueradeIPs = []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.IPv6Unspecified()}
	return s.WithService(svc)
}

// withRange adds a range of ports, which endpoints keep.
func withRange(s servicemodel.State) servicemodel.State {
	svc, eps := s.Service(fieldName), s.Endpoints(fieldName)
	svc.Ports = append(svc.Ports, servicemodel.ServicePort{Name: "rtp",
		Protocol: servicemodel.UDP, Port: 10000, EndPort: 20000})
	for i := range eps {
		eps[i].Ports = append(slices.Clone(eps[i].Ports), servicemodel.EndpointPort{Name: "rtp",
			Protocol: servicemodel.UDP})
	}

	return s.WithService(svc).WithEndpoints(fieldName, eps)
}

// fields is one run of EveryField.
type fields struct {
	*testing.T
	open   func() (backends.Backend, error)
	touch  func() error // lets a neighbour commit
	engine *dataplane.Engine

	applied int             // the number of states that were accepted
	refused map[string]bool // the fields of states that were not accepted
}

// held applies a state, unless the backend cannot express it, and then compares the kernel with it.
// Afterwards it reads and applies the state again that many times.
func (f *fields) held(v randstate.Variant, again int) bool {
	f.Helper()
	ctx := f.Context()
	r, err := settled(f.engine.Apply(ctx, v.State))
	if errors.Is(err, dataplane.ErrRefused) {
		f.refused[v.Name] = true
		return false
	}

	f.must(v, "apply", err)
	if len(r.Drift) > 0 || r.IsRepair() {
		f.Fatalf("%s: a repair: %v", v.Name, r.Drift)
	}
	if len(r.Refused) > 0 {
		f.refused[v.Name] = true
		return false
	}

	f.reads(v)
	for range again {
		f.must(v, "commit of a neighbour", f.touch())
		_, err = f.engine.Observe(ctx)
		f.must(v, "observe", err)
		f.unchanged(v, f.engine)
	}

	return true
}

// reads requires that the kernel holds the engine's table, that a process which has applied nothing
// finds this table, and that a neighbour's commit causes one reading.
func (f *fields) reads(v randstate.Variant) {
	f.Helper()
	want := f.engine.Status().Held
	b, err := f.open()
	f.must(v, "open", err)
	defer b.Close()
	f.finds(v, b, nil, want)
	f.finds(v, b, want, want)
	e := dataplane.New(b, nil)
	f.unchanged(v, e)
	f.must(v, "commit of a neighbour", f.touch())
	f.unchanged(v, e)
	if r := f.unchanged(v, e); r.Observed {
		f.Fatalf("%s: a second reading for one commit of a neighbour", v.Name)
	}
}

// finds requires that a backend finds a table in the kernel.
func (f *fields) finds(v randstate.Variant, b backends.Backend, hint, want *servicemodel.Table) {
	f.Helper()
	o, err := b.Observe(f.Context(), hint)
	f.must(v, "observe", err)
	read := want.AssumedIn(o.Table)
	c := servicemodel.Diff(read, want.Arrange(read))
	if !c.Empty() || len(o.Drift) > 0 || o.Partial {
		f.Fatalf("%s: read, with a hint %t: drift %v, unread %t\n%s", v.Name, hint != nil, o.Drift,
			o.Partial, c)
	}
}

// unchanged requires that an engine has nothing to do.
func (f *fields) unchanged(v randstate.Variant, e *dataplane.Engine) *dataplane.Result {
	f.Helper()
	r, err := settled(e.Apply(f.Context(), v.State))
	f.must(v, "apply again", err)
	if !r.Changes.Empty() || r.IsRepair() || r.Stats.Messages > 0 {
		f.Fatalf("%s, again: %v, a repair %t\n%s", v.Name, r, r.IsRepair(), r.Changes)
	}
	return r
}

// repaired requires that the engine repairs the damage when another process removes an endpoint, or
// everything.
func (f *fields) repaired(v randstate.Variant, everything bool) {
	f.Helper()
	want := f.engine.Status().Held
	b, err := f.open()
	f.must(v, "open", err)
	defer b.Close()
	less := v.State
	if l := less.Endpoints(fieldName); len(l) > 0 {
		less = less.WithEndpoints(fieldName, l[1:])
	}
	r, err := settled(dataplane.New(b, nil).Apply(f.Context(), less))
	f.must(v, "damage", err)
	if everything || r.Changes.Empty() {
		_, err = b.Cleanup(f.Context())
		f.must(v, "damage", err)
	}

	r, err = settled(f.engine.Apply(f.Context(), v.State))
	f.must(v, "repair", err)
	if !r.IsRepair() || !servicemodel.Diff(want, r.Changes.New.Arrange(want)).Empty() {
		f.Fatalf("%s: repaired (everything %t): %v", v.Name, everything, r)
	}
	f.finds(v, b, nil, want)
}

// switched requires that the engine holds the state on another backend.
func (f *fields) switched(v randstate.Variant, open func() (backends.Backend, error)) {
	f.Helper()
	before := f.engine.Status().Held
	b := opened(open())(f.T)
	_, err := f.engine.Switch(f.Context(), b)
	f.must(v, "switch", err)
	f.finds(v, b, nil, before)
	f.unchanged(v, f.engine)
}

// must ends the test if something failed for a state.
func (f *fields) must(v randstate.Variant, doing string, err error) {
	f.Helper()
	if err != nil {
		f.Fatalf("%s: %s: %v", v.Name, doing, err)
	}
}
