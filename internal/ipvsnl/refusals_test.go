package ipvsnl

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// refusals are requests and the kernel's answers to them, each in a network namespace with the
// service web, which has the destinations 10.244.1.1:8080 and 10.244.1.2:8080. They are tried on
// the Fake here and on real kernels in TestKernelRefusals: that is what makes the Fake believable.
var refusals = []struct {
	name  string
	send  func(b *Batch)
	errno syscall.Errno // 0: it succeeds
	is    error
}{
	{name: "a new service", send: func(b *Batch) { b.NewService(wanted(dns6)) }},
	{name: "a service that exists", send: func(b *Batch) {
		b.NewService(wanted(web))
	}, errno: syscall.EEXIST, is: ErrExists},
	{
		name:  "a service that exists, with a scheduler that does not",
		send:  func(b *Batch) { b.NewService(Service{ServiceKey: web, Scheduler: "nosuch"}) },
		errno: syscall.EEXIST, is: ErrExists,
	},
	{
		name:  "a service with an unknown scheduler",
		send:  func(b *Batch) { b.NewService(Service{ServiceKey: dns6, Scheduler: "nosuch"}) },
		errno: syscall.ENOENT, is: ErrNoModule,
	},
	{
		name: "a service with an unknown persistence engine",
		send: func(b *Batch) {
			b.NewService(Service{ServiceKey: dns6, Scheduler: "rr", PersistenceEngine: "nosuch"})
		},
		errno: syscall.ENOENT, is: ErrNoModule,
	},
	{name: "a service without scheduler", send: func(b *Batch) {
		b.NewService(Service{ServiceKey: dns6, Scheduler: "none"})
	}},
	{name: "a service by mark", send: func(b *Batch) { b.NewService(wanted(marks)) }},
	{
		name: "the same mark in the other family",
		send: func(b *Batch) {
			b.NewService(wanted(marks))
			b.NewService(wanted(MarkService(FamilyIPv6, 7)))
		},
	},
	{
		name:  "the same mark twice",
		send:  func(b *Batch) { b.NewService(wanted(marks)); b.NewService(wanted(marks)) },
		errno: syscall.EEXIST, is: ErrExists,
	},
	{
		name: "the same address and port with another protocol",
		send: func(b *Batch) {
			b.NewService(wanted(AddressService(UDP, netip.AddrPortFrom(web.Addr, web.Port))))
		},
	},
	{name: "an unchanged service", send: func(b *Batch) { b.SetService(wanted(web)) }},
	{name: "a change of a missing service", send: func(b *Batch) {
		b.SetService(wanted(dns6))
	}, errno: syscall.ESRCH, is: ErrNoService},
	{
		name:  "a change to an unknown scheduler",
		send:  func(b *Batch) { b.SetService(Service{ServiceKey: web, Scheduler: "nosuch"}) },
		errno: syscall.ENOENT, is: ErrNoModule,
	},
	{name: "removal of a service", send: func(b *Batch) { b.DelService(web) }},
	{name: "removal of a missing service", send: func(b *Batch) {
		b.DelService(dns6)
	}, errno: syscall.ESRCH, is: ErrNoService},
	{name: "a new destination", send: func(b *Batch) {
		b.NewDestination(web, dest("10.244.1.3:8080"))
	}},
	{name: "the same address with another port", send: func(b *Batch) {
		b.NewDestination(web, dest("10.244.1.1:8081"))
	}},
	{
		name: "a destination that exists", send: func(b *Batch) {
			b.NewDestination(web, dest("10.244.1.1:8080"))
		},
		errno: syscall.EEXIST, is: ErrExists,
	},
	{
		name: "a destination of a missing service", send: func(b *Batch) {
			b.NewDestination(dns6, dest("[2001:db8::2]:53"))
		},
		errno: syscall.ESRCH, is: ErrNoService,
	},
	{
		name: "a broadcast destination", send: func(b *Batch) {
			b.NewDestination(web, dest("255.255.255.255:80"))
		},
		errno: syscall.EINVAL,
	},
	{
		name: "a link-local destination that is not ours",
		send: func(b *Batch) {
			b.NewService(wanted(dns6))
			b.NewDestination(dns6, dest("[fe80::1]:53"))
		}, errno: syscall.EINVAL,
	},
	{
		name: "a tunnel to the other family",
		send: func(b *Batch) {
			b.NewDestination(web, Destination{DestinationKey: destKey("[2001:db8::2]:80"),
				Weight: 1, Forward: ForwardTunnel})
		},
	},
	{
		name: "masquerade to the other family", send: func(b *Batch) {
			raw(b, CommandNewDestination, web, dest("[2001:db8::2]:80"))
		},
		errno: syscall.EINVAL,
	},
	{
		name: "a weight beyond the kernel's int",
		send: func(b *Batch) {
			raw(b, CommandNewDestination, web, Destination{DestinationKey: destKey("10.244.1.3:80"),
				Weight: 1 << 31})
		},
		errno: syscall.ERANGE,
	},
	{
		name: "a lower threshold above the upper",
		send: func(b *Batch) {
			raw(b, CommandSetDestination, web, Destination{DestinationKey: destKey("10.244.1.3:80"),
				LowerThreshold: 1})
		},
		errno: syscall.ERANGE,
	},
	{
		name: "gue without port",
		send: func(b *Batch) {
			raw(b, CommandSetDestination, web,
				Destination{DestinationKey: destKey("10.244.1.1:8080"), Forward: ForwardTunnel,
					Tunnel: Tunnel{Type: TunnelGUE}})
		},
		errno: syscall.EINVAL,
	},
	{name: "a change of a destination", send: func(b *Batch) {
		b.SetDestination(web, dest("10.244.1.1:8080"))
	}},
	{
		name: "a change of a missing destination", send: func(b *Batch) {
			b.SetDestination(web, dest("10.244.1.3:8080"))
		},
		errno: syscall.ENOENT, is: ErrNoDestination,
	},
	{
		name: "a change of a destination of a missing service", send: func(b *Batch) {
			b.SetDestination(dns6, dest("[2001:db8::2]:53"))
		},
		errno: syscall.ESRCH, is: ErrNoService,
	},
	{name: "removal of a destination", send: func(b *Batch) {
		b.DelDestination(web, destKey("10.244.1.1:8080"))
	}},
	{
		name: "removal of a missing destination", send: func(b *Batch) {
			b.DelDestination(web, destKey("10.244.1.3:8080"))
		},
		errno: syscall.ENOENT, is: ErrNoDestination,
	},
	{
		name:  "removal of a destination of a missing service",
		send:  func(b *Batch) { b.DelDestination(dns6, destKey("[2001:db8::2]:53")) },
		errno: syscall.ESRCH, is: ErrNoService,
	},
	{
		name: "a command that does not exist", send: func(b *Batch) {
			raw(b, CommandFlush+1, web, Destination{})
		},
		errno: syscall.EOPNOTSUPP,
	},
	{
		name: "a service that is not named", send: func(b *Batch) {
			rawAttrs(b, CommandDelService, nil)
		}, errno: syscall.EINVAL,
	},
	{
		name: "a service without settings", send: func(b *Batch) {
			rawAttrs(b, CommandNewService, appendServiceKey(nil, dns6))
		},
		errno: syscall.EINVAL,
	},
	{
		name: "a destination without settings",
		send: func(b *Batch) {
			rawAttrs(b, CommandNewDestination, appendDestinationKey(appendServiceKey(nil, web),
				destKey("10.0.0.1:1")))
		},
		errno: syscall.EINVAL,
	},
	{
		name:  "a missing service without settings to change",
		send:  func(b *Batch) { rawAttrs(b, CommandSetService, appendServiceKey(nil, dns6)) },
		errno: syscall.EINVAL,
	},
	{
		name: "another family", send: func(b *Batch) {
			rawAttrs(b, CommandDelService, appendServiceKey(nil, ServiceKey{Family: 1, FWMark: 1}))
		},
		errno: syscall.EAFNOSUPPORT,
	},
	{
		name: "an IPv6 prefix of no bits",
		send: func(b *Batch) {
			s := wanted(dns6)
			s.Netmask = Netmask{ignored: 128}
			rawAttrs(b, CommandNewService, appendService(nil, s))
		},
		errno: syscall.EINVAL,
	},
}

// raw adds a command about a destination without looking at it.
func raw(b *Batch, cmd Command, k ServiceKey, d Destination) {
	rawAttrs(b, cmd, appendDestination(appendServiceKey(nil, k), d))
}

// rawAttrs adds a command with the attributes.
func rawAttrs(b *Batch, cmd Command, attributes []byte) {
	b.accept(cmd, nil)
	b.end(append(b.buf, attributes...))
}

// testRefusals tries all refusals, each with a client of its own.
func testRefusals(t *testing.T, dial func(t *testing.T) *Client) {
	t.Helper()
	for _, tt := range refusals {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := dial(t)
			require.NoError(t, submit(t, c, func(b *Batch) {
				b.NewService(wanted(web))
				b.NewDestination(web, dest("10.244.1.1:8080"))
				b.NewDestination(web, dest("10.244.1.2:8080"))
			}))
			err := submit(t, c, tt.send)
			if tt.errno == 0 {
				require.NoError(t, err)
				return
			}
			var refusal *CommandError
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, tt.errno.Error(), refusal.Errno.Error())
			for _, sentinel := range []error{ErrExists, ErrNoService, ErrNoDestination,
				ErrNoModule} {
				require.Equal(t, sentinel == tt.is, errors.Is(err, sentinel), "%v", sentinel)
			}
		})
	}
}

// testReadback writes services and destinations of all kinds and reads them again.
func testReadback(t *testing.T, dial func(t *testing.T) *Client) {
	t.Helper()
	c := dial(t)
	ctx := t.Context()
	services := []Service{
		wanted(web),
		{ServiceKey: AddressService(TCP, addrPort("10.96.0.2:0")), Scheduler: "wlc",
			Flags: FlagPersistent, Timeout: 3 * time.Hour},
		{ServiceKey: AddressService(SCTP, addrPort("10.96.0.2:80")), Scheduler: "lc",
			Timeout: MaxPersistence},
		ops, sip,
		{ServiceKey: dns6, Scheduler: "mh", Flags: FlagHashPort | FlagFallback | FlagPersistent,
			Netmask: mask(FamilyIPv6, 64)},
		{ServiceKey: marks, Scheduler: "sh", Flags: FlagHashPort, Netmask: mask(FamilyIPv4, 0)},
		{ServiceKey: MarkService(FamilyIPv6, 0xffffffff), Scheduler: "none",
			Flags: FlagSchedulerThree},
	}
	all := map[ServiceKey][]Destination{
		web: {
			{DestinationKey: destKey("10.244.1.1:8080")},
			{DestinationKey: destKey("10.244.1.1:8081"), Weight: MaxWeight,
				UpperThreshold: MaxWeight, LowerThreshold: 1},
			{DestinationKey: destKey("10.244.1.2:80"), Weight: 1, Forward: ForwardTunnel,
				Tunnel: Tunnel{Type: TunnelGUE, Port: 6080, Flags: TunnelChecksum |
					TunnelRemoteChecksum}},
			{DestinationKey: destKey("10.244.1.3:80"), Weight: 1, Forward: ForwardLocal},
			{DestinationKey: destKey("[2001:db8::2]:80"), Weight: 1, Forward: ForwardTunnel},
		},
		dns6: {
			{DestinationKey: destKey("10.244.1.4:53"), Weight: 1, Forward: ForwardTunnel,
				Tunnel: Tunnel{Type: TunnelGRE}},
			{DestinationKey: destKey("[2001:db8::3]:53"), Weight: 2},
		},
		marks: {{DestinationKey: destKey("10.244.1.5:0"), Weight: 1, Forward: ForwardDirectRoute}},
	}
	destinations := make([][]Destination, len(services))
	require.NoError(t, submit(t, c, func(b *Batch) {
		for i, s := range services {
			destinations[i] = all[s.ServiceKey]
			b.NewService(s)
			for _, d := range destinations[i] {
				b.NewDestination(s.ServiceKey, d)
			}
		}
	}))

	observed, err := c.Services(ctx)
	require.NoError(t, err)
	var got []Service
	var keys []ServiceKey
	for _, o := range observed {
		require.True(t, o.Hashed)
		require.Zero(t, o.Stats)
		got, keys = append(got, o.Service), append(keys, o.ServiceKey)
	}
	require.ElementsMatch(t, services, got)
	require.IsIncreasing(t, order(keys))

	lists, err := c.AllDestinations(ctx, keysOf(services))
	require.NoError(t, err)
	for i, list := range lists {
		one, err := c.Destinations(ctx, services[i].ServiceKey)
		require.NoError(t, err)
		require.Equal(t, list, one)
		var got []Destination
		for _, o := range list {
			require.Equal(t, ObservedDestination{Destination: o.Destination}, o)
			got = append(got, o.Destination)
		}
		require.Equal(t, destinations[i], got)
	}
	for _, s := range services {
		o, err := c.Service(ctx, s.ServiceKey)
		require.NoError(t, err)
		require.Equal(t, ObservedService{Service: s, Hashed: true}, o)
	}

	d, err := c.Destination(ctx, web, destKey("10.244.1.3:80"))
	require.NoError(t, err)
	require.Equal(t, ForwardLocal, d.Forward)
	_, err = c.Destination(ctx, web, destKey("10.244.1.3:81"))
	require.ErrorIs(t, err, ErrNoDestination)
	missing := AddressService(TCP, addrPort("10.96.9.9:80"))
	_, err = c.Service(ctx, missing)
	require.ErrorIs(t, err, ErrNoService)
	_, err = c.Destinations(ctx, missing)
	require.ErrorIs(t, err, ErrNoService)
	lists, err = c.AllDestinations(ctx, []ServiceKey{missing, marks})
	require.NoError(t, err)
	require.Empty(t, lists[0])
	require.Len(t, lists[1], 1)
}

// keysOf returns the keys of services.
func keysOf(services []Service) (keys []ServiceKey) {
	for _, s := range services {
		keys = append(keys, s.ServiceKey)
	}
	return keys
}

// order returns for each key how many of keys are not after it.
func order(keys []ServiceKey) (places []int) {
	for _, k := range keys {
		n := 0
		for _, o := range keys {
			if o.Compare(k) <= 0 {
				n++
			}
		}
		places = append(places, n)
	}
	return places
}

// testEdits changes what exists and reads it again.
func testEdits(t *testing.T, dial func(t *testing.T) *Client) {
	t.Helper()
	c := dial(t)
	ctx := t.Context()
	full := Service{ServiceKey: web, Scheduler: "sh", Flags: FlagPersistent | FlagHashPort,
		Timeout: time.Minute,
		Netmask: mask(FamilyIPv4, 24), PersistenceEngine: "sip"}
	tunnel := Destination{DestinationKey: destKey("10.244.1.1:8080"), Weight: 7,
		Forward: ForwardTunnel,
		Tunnel:  Tunnel{Type: TunnelGUE, Port: 6080, Flags: TunnelChecksum}, UpperThreshold: 9,
		LowerThreshold: 3}
	plain := dest("10.244.1.1:8080")
	requireIs := func(s Service, d Destination) {
		t.Helper()
		o, err := c.Service(ctx, web)
		require.NoError(t, err)
		require.Equal(t, ObservedService{Service: s, Hashed: true}, o)
		list, err := c.Destinations(ctx, web)
		require.NoError(t, err)
		require.Equal(t, []ObservedDestination{{Destination: d}}, list)
	}
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.NewService(full)
		b.NewDestination(web, tunnel)
	}))
	requireIs(full, tunnel)
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.SetService(wanted(web))
		b.SetDestination(web, plain)
	}))
	requireIs(wanted(web), plain)
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.SetService(full)
		b.SetDestination(web, tunnel)
	}))
	requireIs(full, tunnel)
	drained := tunnel
	drained.Weight = 0
	require.NoError(t, submit(t, c, func(b *Batch) { b.SetDestination(web, drained) }))
	requireIs(full, drained)
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.DelService(web)
		b.NewService(wanted(web))
	}))
	list, err := c.Destinations(ctx, web)
	require.NoError(t, err)
	require.Empty(t, list, "a service goes with its destinations")
}

// testSettings tries the commands that are about the whole network namespace.
func testSettings(t *testing.T, dial func(t *testing.T) *Client) {
	t.Helper()
	c := dial(t)
	ctx := t.Context()
	info, err := c.Info(ctx)
	require.NoError(t, err)
	require.Equal(t, "1.2.1", info.Version.String())

	fresh := Timeouts{TCP: 15 * time.Minute, TCPFin: 2 * time.Minute, UDP: 5 * time.Minute}
	got, err := c.Timeouts(ctx)
	require.NoError(t, err)
	require.Equal(t, fresh, got)
	require.NoError(t, c.SetTimeouts(ctx, Timeouts{TCP: time.Hour}))
	require.NoError(t, c.SetTimeouts(ctx, Timeouts{UDP: time.Second}))
	require.NoError(t, c.SetTimeouts(ctx, Timeouts{}))
	got, err = c.Timeouts(ctx)
	require.NoError(t, err)
	require.Equal(t, Timeouts{TCP: time.Hour, TCPFin: 2 * time.Minute, UDP: time.Second}, got)

	require.NoError(t, c.Zero(ctx))
	require.ErrorIs(t, c.ZeroService(ctx, web), ErrNoService)
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.NewService(wanted(web))
		b.NewService(wanted(marks))
	}))
	require.NoError(t, c.ZeroService(ctx, web))
	require.NoError(t, c.ZeroService(ctx, marks))
	info, err = c.Info(ctx)
	require.NoError(t, err)
	require.NotZero(t, info.ConnTableSize)
	require.NoError(t, c.Flush(ctx))
	require.NoError(t, c.Flush(ctx))
	services, err := c.Services(ctx)
	require.NoError(t, err)
	require.Empty(t, services)
}

// fakeDial returns a client of a new Fake.
func fakeDial(t *testing.T) *Client {
	t.Helper()
	c, _ := fakeClient(t)
	return c
}

func TestTheFakeRefusesWhatTheKernelRefuses(t *testing.T) {
	t.Parallel()
	testRefusals(t, fakeDial)
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	t.Parallel()
	testReadback(t, fakeDial)
}

func TestWhatIsChangedIsRead(t *testing.T) {
	t.Parallel()
	testEdits(t, fakeDial)
}

func TestSettingsOfTheNamespace(t *testing.T) {
	t.Parallel()
	testSettings(t, fakeDial)
}
