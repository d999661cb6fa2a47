package conntrack_test

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/conntrack"
	. "github.com/kernlb/kernlb/internal/test/cttest"
)

func TestFollow(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := OK(table.Follow(ctx, FollowOptions{Filter: Filter{Protocol: UDP}}))(t)
	udp, tcp := NewFlow(UDP, Client, "10.96.0.10:53", "10.244.0.5:5353", ""),
		NewFlow(TCP, Client, "10.96.0.10:80", "", "")
	Create(t, table, tcp, udp)
	listed := List(t, table, Filter{})
	OK(table.Delete(context.Background(), All(listed...)))(t)

	var got []string
	for e, err := range events {
		require.NoError(t, err)
		got = append(got, string(e.Type)+" "+e.Flow.Reply.Src.String())
		if e.Type == FlowDestroyed {
			break
		}
	}

	require.Equal(t, []string{"new 10.244.0.5:5353", "destroyed 10.244.0.5:5353"}, got)

	// Another loop continues after the first one. The context ends it while it waits.
	Create(t, table, udp)
	got = nil
	for e, err := range events {
		require.NoError(t, err)
		got = append(got, string(e.Type))
		time.AfterFunc(time.Millisecond, cancel)
	}

	require.Equal(t, []string{"new"}, got)
}

func TestFollowSaysWhatItLost(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	events := OK(table.Follow(t.Context(),
		FollowOptions{Types: []EventType{FlowNew}, Buffer: 4096}))(t)
	Create(t, table, RandomFlows(rand.New(rand.NewPCG(7, 7)), 1000)...)
	seen := map[EventType]int{}
	for e, err := range events {
		require.NoError(t, err)
		if seen[e.Type]++; seen[EventsLost] > 0 {
			break
		}
	}

	require.Less(t, seen[FlowNew], 1000)
	for want, opts := range map[string]FollowOptions{"buffer of -1 bytes": {Buffer: -1},
		"there is no type \"born\"": {Types: []EventType{"born"}}} {
		_, err := table.Follow(t.Context(), opts)
		require.ErrorContains(t, err, want)
	}
}

// The kernel drops events of other protocols and with another status: they occupy no space in the
// queue.
func TestTheKernelFiltersEvents(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	events := OK(table.Follow(t.Context(), FollowOptions{Types: []EventType{FlowNew}, Buffer: 4096,
		Filter: Filter{Protocol: TCP, Status: StatusDstNAT}}))(t)
	others := RandomFlows(rand.New(rand.NewPCG(8, 8)), 300)
	for i := range others {
		if f := &others[i]; f.Protocol == TCP {
			f.Reply.Src, f.Reply.Dst = f.Original.Dst, f.Original.Src
		}
	}

	Create(t, table, others...)
	last := []Flow{NewFlow(TCP, Client, "10.96.0.10:80", "10.244.0.5:80", ""),
		NewFlow(TCP, "[fd00::1]:4000", "[fd00:96::1]:80", "[fd00:244::1]:80", "")}
	Create(t, table, last...)
	got := 0
	for e, err := range events {
		require.NoError(t, err)
		require.Equal(t, FlowNew, e.Type, "no event was lost")
		require.True(t, e.Flow.Translated(), e.Flow)
		if got++; got == len(last) {
			break
		}
	}
}

func TestARateThinsEvents(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const rate, flows = 50, 5000
	events := OK(table.Follow(ctx, FollowOptions{Types: []EventType{FlowNew}, Rate: rate}))(t)
	counted := make(chan int)
	go func() {
		got := 0
		for e := range events {
			if e.Type == FlowNew {
				got++
			}
		}

		counted <- got
	}()

	began := time.Now()
	for _, f := range RandomFlows(rand.New(rand.NewPCG(9, 9)), flows) {
		Create(t, table, f)
	}
	cancel()
	got, seconds := <-counted, int(time.Since(began)/time.Second)+1
	t.Logf("%d of %d events in %d s", got, flows, seconds)
	require.Positive(t, got)
	require.Less(t, got, min(flows, 10*rate*seconds))
}

func TestReread(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	flows := RandomFlows(rand.New(rand.NewPCG(10, 10)), 1000)
	Create(t, table, flows[:700]...)
	found := map[int]netip.AddrPort{}
	require.NoError(t, table.Reread(t.Context(), flows, func(i int, now *Flow) {
		found[i] = now.Reply.Src
	}))
	require.Len(t, found, 700)
	for i, endpoint := range found {
		require.Equal(t, flows[i].Reply.Src, endpoint)
	}
	require.NoError(t, table.Close())
	require.ErrorIs(t, table.Reread(t.Context(), flows, func(int, *Flow) {}), ErrClosed)
}
