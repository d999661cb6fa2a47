package iptables

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/internal/wait"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// withLocalhost is the service, on a node whose node ports answer at localhost.
func withLocalhost() sm.State {
	node := testNode()
	node.LocalhostNodePorts = true
	return webService().WithNode(node)
}

func observe(t *testing.T, b *backend) *sm.Table {
	o := observation(t, b)
	return o.Table
}

// changeTo is the change from the backend's present state to another.
func changeTo(t *testing.T, b *backend, s sm.State) *sm.ChangeSet {
	return sm.Diff(b.state.table, resolve(t, b.state.table, s))
}

func commit(t *testing.T, b *backend, s sm.State) {
	table := observe(t, b)
	ok(b.Commit(t.Context(), sm.Diff(table, resolve(t, table, s))))(t)
}

// failing are operations that send requests to the kernel, and the preparation that each needs.
var failing = []struct {
	name    string
	prepare func(t *testing.T, b *backend, ns *netnstest.NS)
	run     func(ctx context.Context, t *testing.T, b *backend) error
}{
	{"observe", func(t *testing.T, b *backend, _ *netnstest.NS) { commit(t, b, withLocalhost()) },
		func(ctx context.Context, _ *testing.T, b *backend) error {
			_, err := b.Observe(ctx, nil)
			return err
		}},
	{"observe nothing", func(*testing.T, *backend, *netnstest.NS) {},
		func(ctx context.Context, _ *testing.T, b *backend) error {
			_, err := b.Observe(ctx, nil)
			return err
		}},
	{"integrity", func(t *testing.T, b *backend, _ *netnstest.NS) {
		commit(t, b, withLocalhost())
		b.kernel.gen, b.kernel.looks = 0, wait.NewBudget(8, 20)
	}, func(ctx context.Context, t *testing.T, b *backend) error {
		i, err := b.Integrity(ctx)
		require.Equal(t, err != nil, i == dataplane.Broken)
		return err
	}},
	{"integrity of nothing", func(t *testing.T, b *backend, _ *netnstest.NS) {
		observe(t, b)
		b.kernel.gen, b.kernel.looks = 0, wait.NewBudget(8, 20)
	}, func(ctx context.Context, _ *testing.T, b *backend) error {
		_, err := b.Integrity(ctx)
		return err
	}},
	{"commit", func(t *testing.T, b *backend, _ *netnstest.NS) { commit(t, b, webService()) },
		func(ctx context.Context, t *testing.T, b *backend) error {
			_, err := b.Commit(ctx, changeTo(t, b, withLocalhost()))
			require.Equal(t, err == nil, b.observed)
			return err
		}},
	{"commit without a version", func(t *testing.T, b *backend, ns *netnstest.NS) {
		commit(t, b, webService())
		for _, v := range b.found.versions {
			runTool(t, ns, "", "iptables", "-t", "nat", "-X", v.name)
		}
		observe(t, b)
	}, func(ctx context.Context, t *testing.T, b *backend) error {
		_, err := b.Commit(ctx, changeTo(t, b, withLocalhost()))
		return err
	}},
	{"cleanup", func(t *testing.T, b *backend, _ *netnstest.NS) { commit(t, b, withLocalhost()) },
		func(ctx context.Context, _ *testing.T, b *backend) error {
			_, err := b.Cleanup(ctx)
			return err
		}},
}

// If a request to the kernel fails, the operation returns an error.
func TestEveryFailureIsTold(t *testing.T) {
	t.Parallel()
	for _, c := range failing {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b, ns, _ := opened(t, Config{})
			rawnltest.FailEach(t, c.name, func(ctx context.Context) error {
				c.prepare(t, b, ns)
				return c.run(ctx, t, b)
			})
		})
	}
}

// A closed backend returns an error that says so. A context that ends also ends the wait for a
// turn.
func TestClosedAndEnded(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	other := ok(openBackend(&Config{NetNS: ns.Fd()}))(t)
	unlock := ok(b.Lock(t.Context()))(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := other.Lock(ctx)
	require.ErrorIs(t, err, context.Canceled)
	unlock()
	unlock = ok(other.Lock(t.Context()))(t)
	unlock()
	require.NoError(t, other.Close())
	_, err = other.Observe(t.Context(), nil)
	require.Error(t, err)
	requireIntegrity(t, other, dataplane.Broken, "nothing is known")
}

// A failure to open returns an error, and leaves nothing open.
func TestOpeningFailsAsAWhole(t *testing.T) {
	t.Parallel()
	_, ns, _ := opened(t, Config{})
	rawnltest.FailEachOpen(t, func() (io.Closer, error) {
		return openBackend(&Config{NetNS: ns.Fd()})
	})
}
