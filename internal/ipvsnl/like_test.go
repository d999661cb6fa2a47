package ipvsnl_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/internal/ipvsnl"
)

// likeTheKernel are the tests that both the fake and the kernel pass.
var likeTheKernel = map[string]func(t *testing.T, dial func(t *testing.T) *Client){
	"refusals": testRefusals, "readback": testReadback, "edits": testEdits,
	"settings": testSettings,
}

func TestTheFakeIsLikeTheKernel(t *testing.T) {
	t.Parallel()
	for name, test := range likeTheKernel {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, func(t *testing.T) *Client {
				c, _ := fakeClient(t)
				return c
			})
		})
	}
}

// testRefusals sends commands about a namespace that has the service web with 10.244.1.1:8080, and
// compares the kernel's answers.
func testRefusals(t *testing.T, dial func(t *testing.T) *Client) {
	t.Helper()
	nosuch := Service{ServiceKey: DNS6, Scheduler: "nosuch"}
	udp := AddressService(UDP, netip.AddrPortFrom(Web.Addr, Web.Port))
	for _, tt := range []struct {
		name string
		send []Op
		want error
	}{
		{"a new service", []Op{NewService(Wanted(DNS6))}, nil},
		{"a service that exists", []Op{NewService(Wanted(Web))}, ErrExists},
		{"a service with an unknown scheduler", []Op{NewService(nosuch)}, ErrNoModule},
		{"a mark in both families",
			[]Op{NewService(Wanted(Marks)), NewService(Wanted(MarkService(FamilyIPv6, 7)))}, nil},
		{"the same mark twice",
			[]Op{NewService(Wanted(Marks)), NewService(Wanted(Marks))}, ErrExists},
		{"the same address and port with another protocol", []Op{NewService(Wanted(udp))}, nil},
		{"an unchanged service", []Op{SetService(Wanted(Web))}, nil},
		{"a change of a missing service", []Op{SetService(Wanted(DNS6))}, ErrNoService},
		{"a change to an unknown scheduler",
			[]Op{NewService(Wanted(DNS6)), SetService(nosuch)}, ErrNoModule},
		{"removal of a service", []Op{DelService(Web)}, nil},
		{"removal of a missing service", []Op{DelService(DNS6)}, ErrNoService},
		{"the same address with another port",
			[]Op{NewDestination(Web, Dest("10.244.1.1:8081"))}, nil},
		{"a destination that exists",
			[]Op{NewDestination(Web, Dest("10.244.1.1:8080"))}, ErrExists},
		{"a destination of a missing service",
			[]Op{NewDestination(DNS6, Dest("[2001:db8::2]:53"))}, ErrNoService},
		{"a change of a missing destination",
			[]Op{SetDestination(Web, Dest("10.244.1.3:8080"))}, ErrNoDestination},
		{"a change of a destination of a missing service",
			[]Op{SetDestination(DNS6, Dest("[2001:db8::2]:53"))}, ErrNoService},
		{"removal of a destination", []Op{DelDestination(Web, DestKey("10.244.1.1:8080"))}, nil},
		{"removal of a missing destination",
			[]Op{DelDestination(Web, DestKey("10.244.1.3:8080"))}, ErrNoDestination},
		{"removal of a destination of a missing service",
			[]Op{DelDestination(DNS6, DestKey("[2001:db8::2]:53"))}, ErrNoService},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := dial(t)
			require.NoError(t, c.Submit(t.Context(), NewService(Wanted(Web)),
				NewDestination(Web, Dest("10.244.1.1:8080"))))
			err := c.Submit(t.Context(), tt.send...)
			require.True(t, errors.Is(err, tt.want), "%v", err)
		})
	}
}

// testReadback writes services and destinations of all kinds and reads them again.
func testReadback(t *testing.T, dial func(t *testing.T) *Client) {
	t.Helper()
	c := dial(t)
	of := map[ServiceKey][]Destination{ // sorted
		Web: {
			{DestinationKey: DestKey("10.244.1.1:8080")},
			{DestinationKey: DestKey("10.244.1.1:8081"), Weight: MaxWeight,
				UpperThreshold: MaxWeight, LowerThreshold: 1},
			{DestinationKey: DestKey("10.244.1.2:80"), Weight: 1, Forward: ForwardTunnel},
			{DestinationKey: DestKey("10.244.1.3:80"), Weight: 1, Forward: ForwardLocal},
			{DestinationKey: DestKey("[2001:db8::2]:80"), Weight: 1, Forward: ForwardTunnel},
		},
		DNS6: {
			{DestinationKey: DestKey("10.244.1.4:53"), Weight: 1, Forward: ForwardTunnel},
			{DestinationKey: DestKey("[2001:db8::3]:53"), Weight: 2},
		},
		Marks: {{DestinationKey: DestKey("10.244.1.5:0"), Weight: 1, Forward: ForwardDirectRoute}},
	}
	services := []Service{ // sorted
		Wanted(Web),
		{ServiceKey: AddressService(TCP, netip.MustParseAddrPort("10.96.0.2:0")), Scheduler: "wlc",
			Flags: FlagPersistent, Timeout: 3 * time.Hour},
		{ServiceKey: AddressService(SCTP, netip.MustParseAddrPort("10.96.0.2:80")), Scheduler: "lc",
			Timeout: 31 * 24 * time.Hour},
		SIP, OPS,
		{ServiceKey: DNS6, Scheduler: "mh", Flags: FlagHashPort | FlagFallback | FlagPersistent,
			Netmask: PrefixNetmask(FamilyIPv6, 64)},
		{ServiceKey: Marks, Scheduler: "sh", Flags: FlagHashPort,
			Netmask: PrefixNetmask(FamilyIPv4, 0)},
		{ServiceKey: MarkService(FamilyIPv6, 0xffffffff), Scheduler: "none", Flags: 0x20},
	}
	for _, s := range services {
		require.NoError(t, c.Submit(t.Context(), NewService(s)))
		for _, d := range of[s.ServiceKey] {
			require.NoError(t, c.Submit(t.Context(), NewDestination(s.ServiceKey, d)))
		}
	}

	observed := ok(c.Services(t.Context()))(t)
	require.Len(t, observed, len(services))
	for i, s := range services {
		require.Equal(t, ObservedService{Service: s}, observed[i])
		require.Equal(t, observed[i], ok(c.Service(t.Context(), s.ServiceKey))(t))
		var got []Destination
		for _, o := range ok(c.Destinations(t.Context(), s.ServiceKey))(t) {
			require.Equal(t, ObservedDestination{Destination: o.Destination}, o)
			got = append(got, o.Destination)
		}

		require.Equal(t, of[s.ServiceKey], got)
	}

	missing := AddressService(TCP, netip.MustParseAddrPort("10.96.9.9:80"))
	_, err := c.Service(t.Context(), missing)
	require.ErrorIs(t, err, ErrNoService)
	_, err = c.Destinations(t.Context(), missing)
	require.ErrorIs(t, err, ErrNoService)
	require.Empty(t, ok(c.DestinationsIf(t.Context(), missing))(t))
}

// testEdits changes existing objects and reads them again.
func testEdits(t *testing.T, dial func(t *testing.T) *Client) {
	t.Helper()
	c := dial(t)
	full := Service{ServiceKey: Web, Scheduler: "sh", Flags: FlagPersistent | FlagHashPort,
		Timeout: time.Minute, Netmask: PrefixNetmask(FamilyIPv4, 24), PersistenceEngine: "sip"}
	tunnel := Destination{DestinationKey: DestKey("10.244.1.1:8080"), Weight: 7,
		Forward: ForwardTunnel, UpperThreshold: 9, LowerThreshold: 3}
	plain, drained := Dest("10.244.1.1:8080"), tunnel
	drained.Weight = 0
	requireIs := func(s Service, d ...ObservedDestination) {
		t.Helper()
		require.Equal(t, ObservedService{Service: s}, ok(c.Service(t.Context(), Web))(t))
		require.Equal(t, d, ok(c.Destinations(t.Context(), Web))(t))
	}

	require.NoError(t, c.Submit(t.Context(), NewService(full), NewDestination(Web, tunnel)))
	requireIs(full, ObservedDestination{Destination: tunnel})
	for _, step := range []struct {
		s Service
		d Destination
	}{{Wanted(Web), plain}, {full, tunnel}, {full, drained}} {
		require.NoError(t, c.Submit(t.Context(), SetService(step.s), SetDestination(Web, step.d)))
		requireIs(step.s, ObservedDestination{Destination: step.d})
	}

	require.NoError(t, c.Submit(t.Context(), DelService(Web), NewService(Wanted(Web))))
	requireIs(Wanted(Web)) // a service goes with its destinations
}

// testSettings tries the commands that concern the whole network namespace.
func testSettings(t *testing.T, dial func(t *testing.T) *Client) {
	t.Helper()
	c := dial(t)
	want := Timeouts{TCP: 15 * time.Minute, TCPFin: 2 * time.Minute, UDP: 5 * time.Minute}
	require.Equal(t, want, ok(c.Timeouts(t.Context()))(t))
	for _, set := range []Timeouts{{TCP: time.Hour}, {UDP: time.Second}, {}} {
		require.NoError(t, c.SetTimeouts(t.Context(), set))
	}
	want.TCP, want.UDP = time.Hour, time.Second
	require.Equal(t, want, ok(c.Timeouts(t.Context()))(t))
}
