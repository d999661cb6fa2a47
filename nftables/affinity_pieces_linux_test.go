package nftables

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// touched counts the messages and elements between a backend and the kernel.
type touched struct {
	requests, read, deleted, refused int
	late                             time.Duration // the delay before deletions reach the kernel
}

func (c *touched) count(tap *rawnltest.Tap) {
	elements := func(m rawnltest.Message, typ uint8, n *int) {
		if m.Type == uint16(rawnl.SubsysNFTables)<<8|uint16(typ) {
			_ = nft.DecodeElements(m.Body[4:], func(nft.Elem) error {
				*n++
				return nil
			})
		}
	}

	tap.Request = func(request []rawnltest.Message) {
		c.requests += len(request)
		before := c.deleted
		for _, m := range request {
			elements(m, nft.MsgDelSetElem, &c.deleted)
		}
		if c.deleted > before {
			time.Sleep(c.late)
		}
	}

	tap.Answer = func(m rawnltest.Message) {
		const failure = 2 // NLMSG_ERROR
		if m.Type == failure && binary.NativeEndian.Uint32(m.Body) != 0 {
			c.refused++
		}
		elements(m, nft.MsgNewSetElem, &c.read)
	}
}

// forgetting is a backend after the removal of an endpoint that a tenth of n clients was given.
func forgetting(t *testing.T, kind string, n int, timeout func(int) time.Duration) (*backend,
	*touched) {
	t.Helper()
	ns, writer := newNS(t)
	ok(dataplane.New(writer, nil).Apply(t.Context(), affinityStateOf(kind, 10, -1)))(t)
	b, tap := tapped(t, ns)
	rememberClientsFor(t, writer, n, 10, timeout)
	o := ok(b.Observe(t.Context(), nil))(t)
	ok(b.Commit(t.Context(), servicemodel.Diff(o.Table,
		mustResolve(t, affinityStateOf(kind, 10, 3)).Arrange(o.Table))))(t)
	c := &touched{}
	c.count(tap)
	return b, c
}

// A piece of a sweep touches the entries of at most one map and few messages, for any number of
// clients and any kind of affinity. The number of pieces depends only on the number of maps.
func TestASweepWorksInPieces(t *testing.T) {
	t.Parallel()
	for kind := range affinityKinds {
		for _, n := range []int{1000, 100_000} {
			t.Run(fmt.Sprint(kind, ", ", n, " clients"), func(t *testing.T) {
				b, c := forgetting(t, kind, n, func(int) time.Duration { return time.Hour })
				pieces, deleted := 0, 0
				for next := time.Duration(1); next > 0; pieces++ {
					*c = touched{}
					p := &wait.Packets{Done: time.Now(), Piece: true}
					next = ok(b.Settle(p.In(t.Context())))(t)
					require.LessOrEqual(t, c.read, form.AffinitySize)
					require.LessOrEqual(t, c.deleted, form.AffinitySize)
					require.LessOrEqual(t, c.requests, 12)
					require.Zero(t, c.refused)
					deleted += c.deleted
					require.LessOrEqual(t, pieces, 3*form.AffinityMaps)
				}

				require.Equal(t, n/10, deleted)
				require.False(t, b.pl.Version.Unswept)

				*c = touched{}
				require.Zero(t, ok(b.Settle((&wait.Packets{}).In(t.Context())))(t))
				require.Zero(t, *c, "nothing is left to do")
			})
		}
	}
}

// Without permission for a piece, a sweep only lists the remaining work.
func TestACommitDoesNoPieceOfASweep(t *testing.T) {
	t.Parallel()
	b, c := forgetting(t, "clients", 1000, func(int) time.Duration { return time.Hour })
	begin := &wait.Packets{Done: time.Now(), Piece: true}
	require.Equal(t, wait.Pause, ok(b.Settle(begin.In(t.Context())))(t))
	*c = touched{}
	p := &wait.Packets{}
	require.Equal(t, wait.Pause, ok(b.Settle(p.In(t.Context())))(t))
	require.True(t, p.More)
	require.Zero(t, *c)
}

// Entries that expire between their reading and their deletion hardly ever make a transaction fail.
func TestEntriesThatExpireFailNoTransaction(t *testing.T) {
	t.Parallel()
	for kind := range affinityKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b, c := forgetting(t, kind, 20_000, func(i int) time.Duration {
				return time.Duration(500+i%3000) * time.Millisecond
			})
			c.late = expiring / 2
			require.Zero(t, ok(b.Settle(t.Context()))(t))
			require.LessOrEqual(t, c.refused, form.AffinityMaps/8)
			require.Positive(t, c.deleted)
			require.False(t, b.pl.Version.Unswept)
		})
	}
}

// Packets that rules of the user count do not make a sweep read the maps again.
func TestCountersOfTheUserDoNotProlongASweep(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	b := newBackend(t, ns, &Config{BeforeDispatch: "user-first"})
	ok(dataplane.New(b, nil).Apply(t.Context(), affinityState(2, -1)))(t)
	before := ok(b.kernel.reader.Learnt(t.Context(), nft.IPv4, defaultTable))(t)
	nstest.Run(t, ns, "nft add rule ip kernlb user-first counter packets 7 bytes 700")
	require.Equal(t, before, ok(b.kernel.reader.Learnt(t.Context(), nft.IPv4, defaultTable))(t))
	nstest.Run(t, ns, "nft add rule ip kernlb learn-3600-0 counter packets 7 bytes 700")
	require.Equal(t, before+7, ok(b.kernel.reader.Learnt(t.Context(), nft.IPv4, defaultTable))(t))
}
