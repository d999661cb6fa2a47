package conntrack_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/conntrack"
	. "github.com/kernlb/kernlb/internal/test/cttest"
)

func TestDeleteTakesExactlyTheFlowsGiven(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	r := rand.New(rand.NewPCG(10, 10))
	Create(t, table, RandomFlows(r, 3000)...)
	var doomed, others []Flow
	for _, f := range List(t, table, Filter{}) {
		if r.IntN(2) == 0 {
			doomed = append(doomed, f)
		} else {
			others = append(others, f)
		}
	}

	d := OK(table.Delete(context.Background(), All(doomed...)))(t)
	require.Equal(t, len(doomed), d)
	require.Equal(t, Keys(others), Keys(List(t, table, Filter{})))

	d = OK(table.Delete(context.Background(), All(append(doomed[:10], others[:5]...)...)))(t)
	require.Equal(t, 5, d)
}

func TestDeleteWhileListing(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	Create(t, table, RandomFlows(rand.New(rand.NewPCG(11, 11)), 3000)...)
	d := OK(table.Delete(context.Background(), table.Flows(context.Background(),
		Filter{Protocol: UDP})))(t)
	require.Positive(t, d)
	for _, f := range List(t, table, Filter{}) {
		require.NotEqual(t, UDP, f.Protocol)
	}
}

func TestDeleteAfterAnErrorOfTheSequence(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	f := NewFlow(UDP, Client, "10.96.0.10:53", "10.244.0.5:5353", "")
	Create(t, table, f)
	broken := errors.New("broken")
	d, err := table.Delete(context.Background(), func(yield func(Flow, error) bool) {
		_ = yield(List(t, table, Filter{})[0], nil) && yield(Flow{}, broken)
	})
	require.ErrorIs(t, err, broken)
	require.Equal(t, 1, d, "what came before the error is done")
}

// The same client has created a flow again, to an endpoint that may keep it. This flow is not the
// flow that was listed.
func TestAFlowThatBecameValidAgainSurvives(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	for _, tc := range []struct {
		name        string
		old, new    Flow
		wantDeleted bool
	}{
		{"to another endpoint", NewFlow(UDP, Client, "10.96.0.10:53", "10.244.0.5:5353", ""),
			NewFlow(UDP, Client, "10.96.0.10:53", "10.244.0.6:5353", ""), false},
		{"to an endpoint at last", NewFlow(UDP, Client, "10.96.0.11:53", "", ""),
			NewFlow(UDP, Client, "10.96.0.11:53", "10.244.0.6:5353", ""), false},
		{"masqueraded with another port", NewFlow(UDP, Client, "10.96.0.12:53", "10.244.0.5:5353",
			"192.0.2.10:1024"),
			NewFlow(UDP, Client, "10.96.0.12:53", "10.244.0.6:5353", "192.0.2.10:1025"), false},
		{"another flow has the reply tuple for its original", NewFlow(UDP, Client, "10.96.0.13:53",
			"10.244.0.5:5354", ""),
			NewFlow(UDP, "10.244.0.5:5354", Client, "", ""), false},
		{"to the same endpoint: as stale as before", NewFlow(UDP, Client, "10.96.0.14:53",
			"10.244.0.5:5355", ""),
			NewFlow(UDP, Client, "10.96.0.14:53", "10.244.0.5:5355", ""), true},
	} {
		Create(t, table, tc.old)
		listed := List(t, table, Filter{OriginalDst: tc.old.Original.Dst.Addr()})
		require.Len(t, listed, 1, tc.name)
		d, err := table.Delete(context.Background(), All(listed...))
		require.NoError(t, err, tc.name)
		require.Equal(t, 1, d, tc.name)
		Create(t, table, tc.new)

		d, err = table.Delete(context.Background(), All(listed...))
		require.NoError(t, err, tc.name)
		alive := List(t, table, Filter{OriginalDst: tc.new.Original.Dst.Addr()})
		if !tc.wantDeleted {
			require.Zero(t, d, tc.name)
			require.Len(t, alive, 1, tc.name)
			continue
		}

		// The ID tells the two flows apart only if the kernel did not reuse the memory of the
		// first.
		require.Equal(t, 1, d+len(alive), tc.name)
		t.Logf("%s: %d deleted; the ID was used again if 1", tc.name, d)
	}
}

func TestZonesAreNotConfused(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	var flows []Flow
	for _, zones := range [][2]uint16{{0, 0}, {3, 3}, {4, 0}, {0, 5}} {
		f := NewFlow(UDP, Client, "10.96.0.10:53", "10.244.0.5:5353", "")
		f.Original.Zone, f.Reply.Zone = zones[0], zones[1]

		// A direction without a zone of its own must differ from other flows in the default zone.
		if zones[0] != zones[1] {
			f.Original.Src = AddrPort("10.0.0.1:500" + string('0'+rune(zones[0])))
			f.Reply.Dst = f.Original.Src
		}

		flows = append(flows, f)
	}

	Create(t, table, flows...)
	require.Len(t, List(t, table, Filter{}), 4)
	for i := range flows {
		listed := List(t, table, Filter{Zone: new(flows[i].Zone())})
		require.Len(t, listed, 1)
		d := OK(table.Delete(context.Background(), All(listed...)))(t)
		require.Equal(t, 1, d, "%s", flows[i])
		require.Len(t, List(t, table, Filter{}), 3-i)
	}
}
