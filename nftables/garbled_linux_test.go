package nftables

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/plan"
	"github.com/kernlb/kernlb/servicemodel"
)

// tapped returns a backend, and a tap that sees all its requests to the kernel.
func tapped(t *testing.T, ns *netnstest.NS) (*backend, *rawnltest.Tap) {
	t.Helper()
	b := newBackend(t, ns, nil)
	require.NoError(t, b.kernel.reader.Queriers[1].Conn.Close())
	tap := &rawnltest.Tap{}
	dial(t, b, &rawnl.Config{NetNS: ns.NetNS(),
		Wrap: func(s rawnl.Socket) rawnl.Socket { return tap.Wrap(s) }})
	b.kernel.reader.Queriers[1].Conn = b.kernel.reader.Conn
	return b, tap
}

// An answer that cannot be decoded never counts as a missing object.
func TestGarbledAnswersAreErrors(t *testing.T) {
	t.Parallel()
	ns, writer := newNS(t)
	state := affinityState(2, -1)
	ok(dataplane.New(writer, nil).Apply(t.Context(), state))(t)
	b, tap := tapped(t, ns)
	for name, wanted := range map[string]*servicemodel.Table{"all": mustResolve(t, state),
		"nothing": nil, "none": mustResolve(t, servicemodel.State{})} {
		rawnltest.GarbleEach(t, "observe "+name, tap, func() error {
			_, err := b.Observe(t.Context(), wanted)
			return err
		})
	}

	const getElement = uint16(rawnl.SubsysNFTables)<<8 | uint16(nft.MsgGetSetElem)
	rawnltest.GarbleEach(t, "integrity", tap, func() error {
		b.kernel.gen = 0
		b.looks = wait.NewBudget(8, 20)
		_, err := b.Integrity(t.Context())
		return err
	}, getElement) // this only asks whether the version exists
}

// A sweep that cannot decode an answer returns an error, and does not count as done.
func TestGarbledAnswersEndNoSweep(t *testing.T) {
	t.Parallel()
	ns, writer := newNS(t)
	ok(dataplane.New(writer, nil).Apply(t.Context(), affinityState(10, -1)))(t)
	b, tap := tapped(t, ns)
	o := ok(b.Observe(t.Context(), nil))(t)
	rememberClients(t, b, 100, 10)
	ok(b.Commit(t.Context(), servicemodel.Diff(o.Table,
		mustResolve(t, affinityState(10, 3)).Arrange(o.Table))))(t)
	rawnltest.GarbleEach(t, "settle", tap, func() error {
		_, err := b.Settle(t.Context())
		require.Equal(t, err == nil, b.observed)
		b.observed = true
		return err
	})
}

// doubled makes the second element of a message equal to the first, like a dump of a map that the
// kernel moves to another hash table.
func doubled(m rawnltest.Message) bool {
	const header, elements = 4, 3 // nfgenmsg; NFTA_SET_ELEM_LIST_ELEMENTS
	if m.Type&0xff != uint16(nft.MsgNewSetElem) {
		return false
	}
	for it := rawnl.Attrs(m.Body[header:]); it.Next(); {
		if it.Type() != elements {
			continue
		}
		l := it.Nest()
		if !l.Next() {
			return false
		}
		first := l.Data()
		return l.Next() && copy(l.Data(), first) == len(first)
	}

	return false
}

// An affinity map is read again, a few times, if the kernel was moving the map.
func TestAffinityMapsThatMoveAreReadAgain(t *testing.T) {
	t.Parallel()
	ns, writer := newNS(t)
	ok(dataplane.New(writer, nil).Apply(t.Context(), affinityState(10, -1)))(t)
	rememberClients(t, writer, 100, 10)
	b, tap := tapped(t, ns)
	o := ok(b.Observe(t.Context(), nil))(t)
	ok(b.Commit(t.Context(), servicemodel.Diff(o.Table,
		mustResolve(t, affinityState(10, 3)).Arrange(o.Table))))(t)
	moved, ended := 0, 0
	for n := range form.AffinityMaps {
		tap.Answer = nil
		m := plan.ClientsMap{Number: n, Group: form.GroupClients}
		want, sure, err := b.findClients(t.Context(), nft.IPv4, m, 0)
		require.NoError(t, err)
		for _, times := range []int{1, findTries} {
			seen := 0
			tap.Answer = func(m rawnltest.Message) {
				if seen < times && doubled(m) {
					seen++
				}
			}

			got, still, err := b.findClients(t.Context(), nft.IPv4, m, 0)
			require.NoError(t, err)
			switch seen {
			case 0:
			case findTries:
				require.False(t, still)
				moved++
			default:
				require.ElementsMatch(t, want, got)
				require.Equal(t, sure, still)
			}
		}

		ctx, cancel := context.WithCancel(t.Context())
		twice := false
		tap.Answer = func(m rawnltest.Message) {
			if twice = twice || doubled(m); twice && m.Type == unix.NLMSG_DONE {
				cancel() // before it waits for the next reading
			}
		}

		_, _, err = b.findClients(ctx, nft.IPv4, m, 0)
		require.Equal(t, ctx.Err() != nil, errors.Is(err, context.Canceled))
		if ctx.Err() != nil {
			ended++
		}
		cancel()
	}

	require.Positive(t, moved)
	require.Positive(t, ended)
}
