package conntrack_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/conntrack"
	. "github.com/kernlb/kernlb/internal/test/cttest"
)

func TestFollow(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	follower := OK(table.Follow(FollowOptions{Filter: Filter{Protocol: UDP}}))(t)
	udp, tcp := NewFlow(UDP, Client, "10.96.0.10:53", "10.244.0.5:5353", ""),
		NewFlow(TCP, Client, "10.96.0.10:80", "", "")
	Create(t, table, tcp, udp)
	listed := List(t, table, Filter{})
	OK(table.Delete(context.Background(), All(listed...)))(t)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var got []string
	for e, err := range follower.Events(ctx) {
		require.NoError(t, err)
		got = append(got, e.Type.String()+" "+e.Flow.Reply.Src.String())
		if e.Type == FlowDestroyed {
			cancel()
		}
	}
	require.Equal(t, []string{"new 10.244.0.5:5353", "destroyed 10.244.0.5:5353"}, got)

	// Another sequence continues after the first one. Closing ends it.
	Create(t, table, udp)
	got = nil
	for e, err := range follower.Events(context.Background()) {
		if err != nil {
			require.ErrorIs(t, err, ErrClosed)
			break
		}
		got = append(got, e.Type.String())
		require.NoError(t, follower.Close())
	}
	require.Equal(t, []string{"new"}, got)
}

func TestFollowSaysWhatItLost(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	follower := OK(table.Follow(FollowOptions{Types: []EventType{FlowNew}, Buffer: 4096}))(t)
	defer follower.Close()
	Create(t, table, RandomFlows(rand.New(rand.NewPCG(7, 7)), 1000)...)
	seen := map[EventType]int{}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for e, err := range follower.Events(ctx) {
		require.NoError(t, err)
		if seen[e.Type]++; seen[EventsLost] > 0 {
			break
		}
	}
	require.Positive(t, seen[EventsLost])
	require.Less(t, seen[FlowNew], 1000)
	_, err := table.Follow(FollowOptions{Types: []EventType{9}})
	require.ErrorContains(t, err, "there is no type event 9")
}

// The kernel drops events of other protocols before they are queued.
func TestFollowSomeProtocols(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	follower := OK(table.Follow(FollowOptions{Types: []EventType{FlowNew, FlowDestroyed},
		Protocols: []Protocol{UDP, SCTP}, Buffer: 1 << 20}))(t)
	defer follower.Close()
	flows := RandomFlows(rand.New(rand.NewPCG(40, 40)), 300)
	Create(t, table, flows...)
	OK(table.Delete(context.Background(), table.Flows(context.Background(), Filter{})))(t)
	want := 0
	for _, f := range flows {
		if f.Protocol != TCP {
			want += 2
		}
	}
	require.Less(t, want, 600)
	got := OK(follower.Datagrams())(t)
	require.Equal(t, want, got, "the others are not in the queue")
}
