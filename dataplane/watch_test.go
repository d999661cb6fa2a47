package dataplane_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// watching is a Watcher in memory. It calls changed for each nil that it receives, and fails with
// each error that it receives.
type watching struct {
	*memory.Backend
	events chan error
	begun  int
}

func (w *watching) Watch(ctx context.Context, changed func()) error {
	w.begun++
	for {
		select {
		case err := <-w.events:
			if err != nil {
				return err
			}
			changed()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func newWatching() (*bench, *watching) {
	m := memory.New(nil)
	w := &watching{Backend: m, events: make(chan error, 8)}
	return &bench{m, dataplane.New(w, nil)}, w
}

func TestRunWatchesAgainAfterAFailure(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b, w := newWatching()
		r := runOn(t, b, dataplane.RunOptions{RetryMax: 5 * time.Second})
		r.set(services(1))
		r.at(time.Second)
		lost := errors.New("the socket overflowed")
		w.events <- lost
		r.at(10 * time.Second)
		r.stop()
		require.Equal(t, seconds(0, 1, 6), r.applies, "what happened meanwhile is not known")
		require.ErrorIs(t, r.errs[1], lost)
		require.Nil(t, r.results[1])
		require.NoError(t, r.errs[2])
		require.Equal(t, 2, w.begun)
	})
}

// nodeSource is a NodeSource that a test controls.
type nodeSource struct {
	mu      sync.Mutex
	addr    netip.Addr
	err     error
	changed chan struct{}
}

// set sets the answer of the source.
func (s *nodeSource) set(addr netip.Addr, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addr, s.err = addr, err
}

func newNodeSource() *nodeSource {
	return &nodeSource{addr: netip.MustParseAddr("192.0.2.1"), changed: make(chan struct{}, 8)}
}

func (s *nodeSource) Complete(_ context.Context, n servicemodel.Node) (servicemodel.Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(n.Addresses) == 0 {
		n.Addresses = []netip.Addr{s.addr}
	}
	return n, s.err
}

func (s *nodeSource) Watch(ctx context.Context, changed func()) error {
	for {
		select {
		case <-s.changed:
			changed()
		case <-ctx.Done():
			return nil
		}
	}
}

// primary returns a state that says only that node ports are at the node's primary address.
func primary() servicemodel.State {
	return services(1).WithNode(servicemodel.Node{Name: "this",
		NodePortAddresses: servicemodel.NodePortAddresses{Primary: true}})
}

func nodePortsAt(t *testing.T, table *servicemodel.Table, addr netip.Addr) {
	t.Helper()
	require.Equal(t, []netip.Prefix{netip.PrefixFrom(addr, addr.BitLen())},
		table.Rules().NodePorts)
}

// Each plan and apply completes the unset fields of a state's node. If the source fails, the apply
// fails and leaves the kernel as it is. The wanted state stays as the program gave it.
func TestTheNodeIsCompleted(t *testing.T) {
	t.Parallel()
	kernel, source := &memory.Kernel{}, newNodeSource()
	e := dataplane.New(memory.New(kernel), &dataplane.Config{Node: source})
	p := ok(e.Plan(t.Context(), primary()))(t)
	nodePortsAt(t, p.Changes.New, source.addr)
	ok(e.Apply(t.Context(), primary()))(t)
	nodePortsAt(t, kernel.Table(), source.addr)
	require.Equal(t, primary().Node(), e.Status().State.Node())

	before := source.addr
	source.addr, source.err = netip.MustParseAddr("192.0.2.2"), errors.New("no memory")
	_, err := e.Apply(t.Context(), primary())
	require.ErrorIs(t, err, source.err)
	requirePhase(t, dataplane.PhaseResolve, err)
	nodePortsAt(t, kernel.Table(), before)

	source.err = nil
	r := ok(e.Apply(t.Context(), primary()))(t)
	nodePortsAt(t, kernel.Table(), source.addr)
	require.Zero(t, r.Counts.Added, "services are not written anew")
}

// Run applies the state again when the node has changed, whatever backend the engine has at that
// time. If the source fails, Run tries again.
func TestRunFollowsTheNode(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		kernel, source := &memory.Kernel{}, newNodeSource()
		e := dataplane.New(memory.New(kernel), &dataplane.Config{Node: source})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.Run(ctx, &dataplane.RunOptions{Resync: -1}) }()
		require.NoError(t, e.Wait(t.Context(), e.Set(primary())))
		move := func(addr string, err error) {
			source.set(netip.MustParseAddr(addr), err)
			source.changed <- struct{}{}
			time.Sleep(time.Second)
		}

		move("192.0.2.2", nil)
		nodePortsAt(t, kernel.Table(), source.addr)

		other := &memory.Kernel{}
		ok(e.Switch(t.Context(), memory.New(other)))(t)
		move("192.0.2.3", nil)
		nodePortsAt(t, other.Table(), source.addr)

		move("192.0.2.4", errors.New("no memory"))
		nodePortsAt(t, other.Table(), netip.MustParseAddr("192.0.2.3"))
		source.set(source.addr, nil)
		time.Sleep(time.Minute)
		nodePortsAt(t, other.Table(), source.addr)
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

// A change of the node is not lost if another call applies a state while Run waits for MinInterval,
// because that call may have completed the node before the change.
func TestRunFollowsTheNodeDuringAnApply(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		source := newNodeSource()
		b := benchWith(dataplane.Config{Node: source})
		r := runOn(t, b, dataplane.RunOptions{MinInterval: 10 * time.Second, Resync: never})
		r.set(primary())
		r.at(time.Second)
		r.commitsTake(2 * time.Second)
		source.set(netip.MustParseAddr("192.0.2.2"), nil)
		time.AfterFunc(time.Second, func() {
			source.set(netip.MustParseAddr("192.0.2.3"), nil)
			source.changed <- struct{}{}
		})

		ok(b.engine.Apply(t.Context(), primary()))(t)
		nodePortsAt(t, b.Kernel().Table(), netip.MustParseAddr("192.0.2.2"))
		r.at(20 * time.Second)
		nodePortsAt(t, b.Kernel().Table(), netip.MustParseAddr("192.0.2.3"))
		require.Equal(t, seconds(0, 3, 12), r.applies)
	})
}
