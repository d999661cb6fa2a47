package iptables

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/internal/wait"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// withLocalhost returns the service, on a node whose node ports answer at localhost.
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
		require.Equal(t, err != nil, i == backends.Broken)
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

// tapped opens a backend, and a tap on its messages to and from the kernel.
func tapped(t *testing.T, ns *netnstest.NS) (*backend, *rawnltest.Tap) {
	t.Helper()
	tap := &rawnltest.Tap{}
	b := ok(openWith(rawnl.Config{NetNS: ns.NetNS(),
		Wrap: func(s rawnl.Socket) rawnl.Socket { return tap.Wrap(s) }}))(t)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b, tap
}

// beforeEach calls fn with a number before each transaction, and returns the number of transactions
// so far.
func beforeEach(tap *rawnltest.Tap, fn func(n int)) *int {
	n := new(int)
	tap.Request = func(request []rawnltest.Message) {
		const begin = 0x10 // NFNL_MSG_BATCH_BEGIN
		if request[0].Type == begin {
			*n++
			fn(*n)
		}
	}

	return n
}

// Another program replaces a rule of a shared chain between the reading of its handle and the
// commit. The handle is read again, a few times, and only while the instance has its version.
func TestHandlesThatChangeAreReadAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		// the tries before which the rule is replaced, and before which the version is deleted
		replaced, gone int
		tries          int
		conflict       bool
	}{
		{replaced: 0, tries: 1},
		{replaced: 1, tries: 2},
		{replaced: commitTries - 1, tries: commitTries},
		{replaced: commitTries, tries: commitTries, conflict: true},
		{replaced: 1, gone: 1, tries: 1, conflict: true},
	} {
		_, ns, _ := opened(t, Config{})
		b, tap := tapped(t, ns)
		apply(t, b, webService())
		version := b.found.versions[0].name
		tries := beforeEach(tap, func(n int) {
			if n <= c.replaced {
				rule := "INPUT -m conntrack --ctstate NEW -m comment --comment"
				args := append(strings.Fields(rule), "kubernetes service portals", "-j",
					"KUBE-SERVICES")
				runTool(t, ns, "", "iptables", append([]string{"-D"}, args...)...)
				runTool(t, ns, "", "iptables", append([]string{"-I"}, args...)...)
			}

			if n == c.gone {
				runTool(t, ns, "", "iptables", "-t", "nat", "-X", version)
			}
		})
		_, err := b.Cleanup(t.Context())
		require.Equal(t, c.tries, *tries, "%+v", c)
		if c.conflict {
			require.ErrorIs(t, err, kernelerr.ErrConflict, "%+v", c)
		} else {
			require.NoError(t, err, "%+v", c)
			require.NotContains(t, save(t, ns, nft.IPv4), "KUBE")
		}

		requireNothingIsKnown(t, b)
	}
}

// requireNothingIsKnown requires that the kernel must be observed first.
func requireNothingIsKnown(t *testing.T, b *backend) {
	t.Helper()
	requireIntegrity(t, b, backends.Broken)
	none := sm.Diff(nil, nil)
	_, err := b.Plan(none)
	require.ErrorIs(t, err, errNotObserved)
	_, err = b.Commit(context.Background(), none)
	require.ErrorIs(t, err, errNotObserved)
}

// If another program commits before each try to give an instance a version, the result is a
// conflict.
func TestAVersionIsNotTriedForEver(t *testing.T) {
	t.Parallel()
	_, ns, _ := opened(t, Config{})
	b, tap := tapped(t, ns)
	apply(t, b, webService())
	runTool(t, ns, "", "iptables", "-t", "nat", "-X", b.found.versions[0].name)
	observe(t, b)
	other := ok(rawnl.Dial(&rawnl.Config{NetNS: ns.NetNS()}))(t)
	defer other.Close()
	tries := beforeEach(tap, func(int) {
		var batch rawnl.Batch
		table := nft.NewEncoder(&batch, nft.IPv4, "other")
		table.EnsureTable()
		table.DeleteTable()
		require.NoError(t, other.Commit(t.Context(), &batch, 0))
	})
	_, err := b.Commit(t.Context(), changeTo(t, b, withLocalhost()))
	require.ErrorIs(t, err, kernelerr.ErrConflict)
	require.ErrorContains(t, err, "keeps changing")
	require.Equal(t, versionTries, *tries)
}
