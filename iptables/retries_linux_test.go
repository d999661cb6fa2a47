package iptables

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rawnl/rawnltest"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// tapped opens a backend of which one sees what passes between it and the kernel.
func tapped(t *testing.T, ns *netnstest.NS) (*Backend, *rawnltest.Tap) {
	t.Helper()
	b, err := New(&Config{NetNS: ns.Fd()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	tap := &rawnltest.Tap{}
	require.NoError(t, b.kernel.conn.Close())
	b.kernel.conn, err = rawnl.Dial(&rawnl.Config{NetNS: ns.Fd(),
		Wrap: func(s rawnl.Socket) rawnl.Socket { return tap.Wrap(s) }})
	require.NoError(t, err)
	b.kernel.reader = newReader(b.kernel.conn)
	return b, tap
}

// beforeEach calls fn with a number before each transaction, and returns how many there were.
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

// A rule of a shared chain that somebody replaces between the look at its handle and the commit is
// looked up again: some times, and only while the instance has its version.
func TestHandlesThatChangeAreReadAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		replaced, gone int // the tries before which the rule is replaced, and the version deleted
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
		version := b.l.names.version(b.found.versions[0])
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
			require.ErrorIs(t, err, dataplane.ErrConflict, "%+v", c)
		} else {
			require.NoError(t, err, "%+v", c)
			require.NotContains(t, save(t, ns, nft.IPv4), "KUBE")
		}
		requireNothingIsKnown(t, b)
	}
}

// requireNothingIsKnown requires that the kernel must be observed first.
func requireNothingIsKnown(t *testing.T, b *Backend) {
	t.Helper()
	i, err := b.Integrity(t.Context())
	require.NoError(t, err)
	require.Equal(t, dataplane.Broken, i)
	none := sm.Diff(nil, nil)
	_, err = b.Plan(none)
	require.ErrorIs(t, err, errNotObserved)
	_, err = b.Commit(context.Background(), none)
	require.ErrorIs(t, err, errNotObserved)
}

// Somebody who commits before each try to give an instance a version is a conflict in the end.
func TestAVersionIsNotTriedForEver(t *testing.T) {
	t.Parallel()
	_, ns, _ := opened(t, Config{})
	b, tap := tapped(t, ns)
	apply(t, b, webService())
	runTool(t, ns, "", "iptables", "-t", "nat", "-X", b.l.names.version(b.found.versions[0]))
	observe(t, b)
	other, err := rawnl.Dial(&rawnl.Config{NetNS: ns.Fd()})
	require.NoError(t, err)
	defer other.Close()
	tries := beforeEach(tap, func(int) {
		var batch rawnl.Batch
		table := nft.NewEncoder(&batch, nft.IPv4, "other")
		table.EnsureTable()
		table.DeleteTable()
		require.NoError(t, other.Commit(t.Context(), &batch, 0))
	})
	_, err = b.Commit(t.Context(), changeTo(t, b, withLocalhost()))
	require.ErrorIs(t, err, dataplane.ErrConflict)
	require.ErrorContains(t, err, "keeps changing")
	require.Equal(t, versionTries, *tries)
}

// What is put back into a chain that others have rules in comes before those, whichever rule it is;
// and a rule that took the place of another is seen by a look.
func TestRulesThatAreReplacedAreSeenAndPutBack(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	e := dataplane.New(b, nil)
	_, err := e.Apply(t.Context(), webService())
	require.NoError(t, err)
	runTool(t, ns, "", "iptables", "-A", "FORWARD", "-j", "ACCEPT")
	want := save(t, ns, nft.IPv4)
	for _, damage := range []string{"-D FORWARD 2", "-D FORWARD 1", "-D INPUT 1",
		"-R KUBE-FORWARD 1 -j ACCEPT"} {
		runTool(t, ns, "", "iptables", strings.Fields(damage)...)
		whole, _, err := b.look(t.Context())
		require.NoError(t, err)
		require.False(t, whole, damage)
		r, err := e.Apply(t.Context(), webService())
		require.NoError(t, err)
		require.Len(t, r.Drift, 1, damage)
		require.Equal(t, want, save(t, ns, nft.IPv4), damage)
	}
}

// Many chains are read over several connections, but not over more than there are processors.
func TestHowManyConnectionsReadChains(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]int{{0, 4, 1}, {chainsForReader - 1, 4, 1}, {chainsForReader, 4, 2},
		{3*chainsForReader - 1, 4, 3}, {100 * chainsForReader, 4, 4}, {chainsForReader, 1, 1}} {
		require.Equal(t, c[2], readersFor(c[0], c[1]), "%v", c)
	}
}

// No configuration is the default one, in the network namespace of the caller.
func TestNoConfigurationIsTheDefaultOne(t *testing.T) {
	t.Parallel()
	_, ns, _ := opened(t, Config{})
	require.NoError(t, ns.Do(func() error {
		b, err := New(nil)
		if err != nil {
			return err
		}
		apply(t, b, webService())
		return b.Close()
	}))
	require.Contains(t, save(t, ns, nft.IPv4), DefaultPrefix+"-SERVICES")
}

// Each commit is a record of the log, with what it cost.
func TestCommitsAreLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	b, _, _ := opened(t, Config{Logger: logger})
	r, err := dataplane.New(b, nil).Apply(t.Context(), webService())
	require.NoError(t, err)
	for _, want := range []string{"level=DEBUG msg=committed backend=iptables", fmt.Sprintf(
		"messages=%d bytes=%d duration=", r.Messages, r.Bytes)} {
		require.Contains(t, log.String(), want)
	}
}
