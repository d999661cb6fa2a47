package ipvsnl

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnInterruptedDumpIsRepeated(t *testing.T) {
	t.Parallel()
	c, f := fakeClient(t)
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.NewService(wanted(web))
		b.NewDestination(web, dest("10.0.0.1:80"))
	}))
	f.InterruptDumps(dumpAttempts - 1)
	services, err := c.Services(t.Context())
	require.NoError(t, err)
	require.Len(t, services, 1)
	f.InterruptDumps(dumpAttempts - 1)
	lists, err := c.AllDestinations(t.Context(), []ServiceKey{web})
	require.NoError(t, err)
	require.Len(t, lists[0], 1)

	f.InterruptDumps(dumpAttempts)
	_, err = c.Services(t.Context())
	require.ErrorIs(t, err, ErrDumpInterrupted)
	f.InterruptDumps(dumpAttempts)
	_, err = c.Destinations(t.Context(), web)
	require.ErrorIs(t, err, ErrDumpInterrupted)
	require.ErrorContains(t, err,
		"TCP 10.96.0.1:80: get destination: 5 attempts: the dump was interrupted")
}

func TestADumpThatShowsSomethingTwiceIsRepeated(t *testing.T) {
	t.Parallel()
	dumps := 0
	c, _ := dialScripted(t, func(m message) [][]byte {
		dumps++
		body := appendObservedService(genBody(uint8(CommandNewService)),
			ObservedService{Service: wanted(web), Hashed: true})
		parts := [][]byte{reply(m, flagMulti, body)}
		if dumps < 3 {
			parts = append(parts, reply(m, flagMulti, body))
		}
		return append(parts, appendVerdict(nil, typeDone, m, 0))
	})
	services, err := c.Services(t.Context())
	require.NoError(t, err)
	require.Len(t, services, 1)
	require.Equal(t, 3, dumps)
}

func TestADumpInPartsIsWholeAndSorted(t *testing.T) {
	t.Parallel()
	c, _ := fakeClient(t)
	add, _ := many(300, 0)
	require.NoError(t, c.Submit(t.Context(), add))
	require.NoError(t, submit(t, c, func(b *Batch) {
		for i := range 300 {
			d := dest("10.0.0.1:80")
			d.Port = uint16(300 - i)
			b.NewDestination(AddressService(TCP, addrPort("10.96.0.1:80")), d)
		}
	}))
	services, err := c.Services(t.Context())
	require.NoError(t, err)
	require.Len(t, services, 300)
	for i := 1; i < len(services); i++ {
		require.Negative(t, services[i-1].Compare(services[i].ServiceKey))
	}
	list, err := c.Destinations(t.Context(), web)
	require.NoError(t, err)
	require.Len(t, list, 300)
	require.Equal(t, uint16(1), list[0].Port)
}

func TestADumpCanBeGivenUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	parts := 0
	c, _ := dialScripted(t, func(m message) (answer [][]byte) {
		for range 3 {
			parts++
			s := wanted(MarkService(FamilyIPv4, uint32(parts)))
			answer = append(answer,
				reply(m, flagMulti, appendObservedService(genBody(uint8(CommandNewService)),
					ObservedService{Service: s})))
		}
		cancel()
		return append(answer, appendVerdict(nil, typeDone, m, 0))
	})
	_, err := c.Services(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestStatisticsAndConnectionsAreRead(t *testing.T) {
	t.Parallel()
	c, f := fakeClient(t)
	d := dest("10.244.1.1:8080")
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.NewService(wanted(web))
		b.NewDestination(web, d)
	}))
	require.NoError(t, f.SetConns(web, d.DestinationKey, 1, 2, 3))
	require.NoError(t, f.SetStats(web, d.DestinationKey, someStats))
	require.NoError(t, f.SetStats(web, DestinationKey{}, Stats{Connections: 1 << 40}))
	require.ErrorIs(t, f.SetConns(dns6, d.DestinationKey, 1, 2, 3), ErrNoService)
	require.ErrorIs(t, f.SetConns(web, destKey("10.0.0.1:1"), 1, 2, 3), ErrNoDestination)
	require.ErrorIs(t, f.SetStats(dns6, DestinationKey{}, Stats{}), ErrNoService)

	o, err := c.Destination(t.Context(), web, d.DestinationKey)
	require.NoError(t, err)
	require.Equal(t, ObservedDestination{Destination: d, ActiveConns: 1, InactiveConns: 2,
		PersistentConns: 3, Stats: someStats}, o)
	s, err := c.Service(t.Context(), web)
	require.NoError(t, err)
	require.Equal(t, uint64(1)<<40, s.Stats.Connections)

	require.NoError(t, c.ZeroService(t.Context(), web))
	o, err = c.Destination(t.Context(), web, d.DestinationKey)
	require.NoError(t, err)
	require.Zero(t, o.Stats)
	require.Equal(t, uint32(1), o.ActiveConns)
	require.NoError(t, f.SetStats(web, DestinationKey{}, someStats))
	require.NoError(t, c.Zero(t.Context()))
	s, err = c.Service(t.Context(), web)
	require.NoError(t, err)
	require.Zero(t, s.Stats)
}

func TestAForeignServiceIsRead(t *testing.T) {
	t.Parallel()
	c, _ := fakeClient(t)
	esp := web
	esp.Protocol = 50
	require.NoError(t, submit(t, c, func(b *Batch) {
		rawAttrs(b, CommandNewService,
			appendService(nil, Service{ServiceKey: esp, Scheduler: "rr", Flags: 1 << 30}))
	}))
	services, err := c.Services(t.Context())
	require.NoError(t, err)
	require.Equal(t, ServiceFlags(1<<30), services[0].Flags)
	_, err = c.Destinations(t.Context(), services[0].ServiceKey)
	require.NoError(t, err)
	require.NoError(t, c.ZeroService(t.Context(), esp))
}
