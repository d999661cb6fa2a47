package nftables

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// sending calls before with the number of each transaction, from 1 on, before the transaction is
// sent. If before returns an error, the transaction is not sent.
type sending struct {
	rawnl.Socket
	n      int
	before func(n int) error
}

func (s *sending) Send(p []byte) error {
	const batchBegin = 16
	if binary.NativeEndian.Uint16(p[4:]) == batchBegin {
		s.n++
		if err := s.before(s.n); err != nil {
			return err
		}
	}

	return s.Socket.Send(p)
}

// inSmallSteps makes a backend need many steps, and calls before ahead of each step.
func inSmallSteps(t *testing.T, b *backend, ns *netnstest.NS, before func(n int) error) *sending {
	t.Helper()
	s := &sending{before: before}
	dial(t, b, &rawnl.Config{NetNS: ns.NetNS(), Limit: 100_000,
		Wrap: func(inner rawnl.Socket) rawnl.Socket {
			s.Socket = inner
			return s
		}})

	return s
}

// The tables of a large new instance are created in steps, and packets meet them after the last
// step.
func TestALargeInstanceComesInSteps(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	other := newBackend(t, ns, nil)
	s := inSmallSteps(t, b, ns, func(n int) error {
		if n == 1 {
			return nil
		}
		o := ok(other.Observe(t.Context(), nil))(t)
		require.Equal(t, []string{"the tables are not finished"}, o.Drift)
		require.Zero(t, o.Table.Len())
		for _, f := range nft.Families {
			r := ok(other.kernel.reader.Table(t.Context(), f, defaultTable))(t)
			for name, c := range r.Chains {
				require.Empty(t, c.Type, "chain %s of step %d", name, n)
			}
		}

		o = ok(other.ObserveParts(t.Context(), []string{"default"}, nil))(t)
		require.Zero(t, o.Table.Len())
		return nil
	})
	e := dataplane.New(b, nil)
	r := ok(e.Apply(t.Context(), manyServices(500)))(t)
	require.Greater(t, s.n, 5)
	require.Greater(t, r.Stats.Bytes, 300_000)
	require.Equal(t, backends.Intact, integrity(t, b))
	requireAdopts(t, other, manyServices(500), mustResolve(t, manyServices(500)))

	// Existing tables are changed at once.
	s.n = 0
	ok(e.Apply(t.Context(), manyServices(510)))(t)
	require.Equal(t, 1, s.n)
}

// Whatever happens between two steps, the tables end up as wanted.
func TestStepsThatAreInterrupted(t *testing.T) {
	t.Parallel()
	const at = 4
	want := manyServices(500)
	for name, tt := range map[string]struct {
		// happen is called before step at and, with again, also before each later step.
		happen func(t *testing.T, other *backend, cancel func()) error
		again  bool
		fails  bool // the first apply fails
		left   bool // unfinished tables are left
	}{
		"an error": {fails: true,
			happen: func(*testing.T, *backend, func()) error { return unix.ENOMEM }},
		"its process dies": {fails: true, again: true, left: true,
			happen: func(*testing.T, *backend, func()) error { return unix.EIO }},
		"its context ends": {fails: true, happen: func(_ *testing.T, _ *backend, c func()) error {
			c()
			return context.Canceled
		}},
		"another program flushes": {happen: func(t *testing.T, other *backend, _ func()) error {
			_, err := other.Cleanup(t.Context())
			return err
		}},
		"another writer makes them": {happen: func(t *testing.T, other *backend, _ func()) error {
			_, err := dataplane.New(unlocked{other}, nil).Apply(t.Context(), want)
			return err
		}},
		"another writer makes others": {happen: func(t *testing.T, other *backend, _ func()) error {
			_, err := dataplane.New(unlocked{other}, nil).Apply(t.Context(), manyServices(3))
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns, b := newNS(t)
			other := newBackend(t, ns, nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			inSmallSteps(t, b, ns, func(n int) error {
				if n == at || n > at && tt.again {
					return tt.happen(t, other, cancel)
				}
				return nil
			})

			_, err := dataplane.New(b, nil).Apply(ctx, want)
			require.Equal(t, tt.fails, err != nil, "%v", err)
			o := ok(other.Observe(t.Context(), nil))(t)
			require.Equal(t, !tt.fails, o.Table.Len() > 0)
			require.Equal(t, tt.left, len(o.Drift) > 0)
			ok(dataplane.New(other, nil).Apply(t.Context(), want))(t)
			requireAdopts(t, newBackend(t, ns, nil), want, mustResolve(t, want))
		})
	}
}

// unlocked is a backend that waits for no turn.
type unlocked struct{ backends.Backend }

func (unlocked) Unwrap() backends.Backend { return nil }
