package law

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/servicemodel"
)

// states are the states of a sequence. They use every field.
func states() randstate.Config {
	c := randstate.Config{Services: 4, EndpointPorts: []uint16{8080, 8081, 9090}, Weights: true,
		Every: true, Ranges: true, Shifted: true,
		Schedulers: []servicemodel.Scheduler{"", "", "", "wrr", "wrr",
			"wrr", "wrr", "rr", "sh", "mh", "lc", "fo"}, Edit: func(s *servicemodel.Service) {
			if s.Scheduler == "wrr" { // refuse limits its weights, which nearness multiplies
				s.Prefer = ""
			}
		}}
	for i := range 5 {
		c.Places = append(c.Places, randstate.Place{
			IPv4: netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}),
			IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:10:244::%x", i+1)),
			Node: []string{"node-0", "node-1", ""}[i%3], Zone: "z" + fmt.Sprint(i%2)})
	}

	return c
}

// refuse is the Check of a backend that lacks a scheduler, heavy pools and direct routing.
func refuse(c *servicemodel.ChangeSet) error {
	var errs []error
	refuse := func(of servicemodel.PortName, field, value string) {
		errs = append(errs, &backends.UnsupportedError{Backend: "law", Service: of.Name,
			Object: "service " + of.String(), Field: field, Value: value})
	}

	for _, p := range c.Pools {
		if p.New != nil && p.New.Scheduler == servicemodel.LeastConn {
			refuse(p.New.ID.Service, backends.FieldScheduler, "lc")
		}
		if p.New != nil && p.New.Forwarding == servicemodel.ForwardDirect {
			refuse(p.New.ID.Service, backends.FieldForwarding, "direct")
		}
		sum := 0
		for i := 0; p.New != nil && i < len(p.New.Slots); i++ {
			sum += int(p.New.Slots[i].Weight)
		}
		heavy := sum > 120 || sum > 4 && sum < 20 // those with a slow start have at least 20
		if heavy && p.New.Scheduler == "wrr" {
			refuse(p.New.ID.Service, backends.FieldWeights, fmt.Sprint(sum))
		}
	}

	return errors.Join(errs...)
}

// check returns the refusals of the machine's backends, and of refuse.
func (m *Machine) check(c *servicemodel.ChangeSet) error {
	if m.Check == nil {
		return refuse(c)
	}
	return errors.Join(m.Check(c), refuse(c))
}

// vary returns a state with a random change.
func (m *Machine) vary(g *randstate.Source, s servicemodel.State) servicemodel.State {
	s = g.Change(s)
	if m.Node != nil {
		n := s.Node()
		m.Node(&n)
		s = s.WithNode(n)
	}

	return s
}

// backend is a backend of a machine, with further refusals, and with commits that can fail.
type backend struct {
	backends.Backend
	// foreign counts the foreign commits, and told is its value at the last report of Touched. If
	// foreign is not nil, the backend reports each commit only once.
	foreign *int
	told    int
	// fails says that the next commit fails, and lost that it takes effect nevertheless.
	fails, lost bool
}

var errAnswer = fmt.Errorf("the answer is lost: %w", syscall.ENOBUFS)

func (b *backend) Unwrap() backends.Backend { return b.Backend }

// Check refuses what the machine refuses. The inner backend comes last, because it may have met a
// collision.
func (b *backend) Check(c *servicemodel.ChangeSet) error {
	return errors.Join(refuse(c), b.Backend.Check(c))
}

func (b *backend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (backends.Stats, error) {
	fails := b.fails
	b.fails = false
	if fails && !b.lost {
		return backends.Stats{}, fmt.Errorf("%s: commit: %w", b.Name(), syscall.EPERM)
	}
	stats, err := b.Backend.Commit(ctx, c)
	if fails && err == nil {
		return backends.Stats{}, fmt.Errorf("%s: commit: %w", b.Name(), errAnswer)
	}
	return stats, err
}

func (b *backend) Integrity(ctx context.Context) (backends.Integrity, error) {
	i, err := b.Backend.Integrity(ctx)
	if i == backends.Touched && b.foreign != nil {
		if b.told == *b.foreign {
			return backends.Intact, err
		}
		b.told = *b.foreign
	}

	return i, err
}

// instances opens the instances of a machine, and closes them in the end.
type instances struct {
	*Machine
	t    *testing.T
	open []backends.Backend
}

// process opens an instance, like a new process.
func (m *instances) process(at int) backends.Backend {
	b := must.OK(m.Open(at))(m.t)
	m.open = append(m.open, b)
	return b
}

// observe reads an instance with a new backend.
func (m *instances) observe(at int) *backends.Observation {
	b := must.OK(m.Open(at))(m.t)
	defer b.Close()
	return must.OK(b.Observe(m.t.Context(), nil))(m.t)
}

// close closes all backends.
func (m *instances) close() {
	for _, b := range m.open {
		if err := b.Close(); err != nil {
			m.t.Error(err)
		}
	}
}

// of returns the table of a new engine for a state, on a new kernel.
func (m *instances) of(s servicemodel.State, cfg dataplane.Config) *servicemodel.Table {
	b := memory.New(nil)
	b.Refuse(m.check)
	cfg.Approve, cfg.Flows = nil, nil
	must.OK(dataplane.New(b, &cfg).Apply(m.t.Context(), s))(m.t)
	return b.Kernel().Table()
}

// whole returns a table in which all endpoints have the same weight.
func whole(t *servicemodel.Table) *servicemodel.Table {
	c := t.Contents()
	c.Pools = nil
	for p := range t.Pools() {
		own := *p // tables share their pools
		own.Slots, own.Units = slices.Clone(p.Slots), nil
		for i := range own.Slots {
			own.Slots[i].Weight = 1
		}
		c.Pools = append(c.Pools, &own)
	}

	same, err := servicemodel.NewTable(c)
	if err != nil {
		panic(err)
	}
	return same
}
