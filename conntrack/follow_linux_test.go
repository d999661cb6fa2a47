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
