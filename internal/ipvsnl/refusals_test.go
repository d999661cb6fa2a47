package ipvsnl_test

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// refusals are requests and the kernel's answers to them, each in a network namespace with the
// service web, which has the destinations 10.244.1.1:8080 and 10.244.1.2:8080. They are tried on
// ipvsfake here and on real kernels in TestKernelRefusals: that is what makes ipvsfake believable.
var refusals = []struct {
	name  string
	send  func(b *Batch)
	errno syscall.Errno // 0: it succeeds
	is    error
}{
	{name: "a new service", send: func(b *Batch) { b.NewService(Wanted(DNS6)) }},
	{name: "a service that exists", send: func(b *Batch) {
		b.NewService(Wanted(Web))
	}, errno: syscall.EEXIST, is: ErrExists},
	{
		name:  "a service that exists, with a scheduler that does not",
		send:  func(b *Batch) { b.NewService(Service{ServiceKey: Web, Scheduler: "nosuch"}) },
		errno: syscall.EEXIST, is: ErrExists,
	},
	{
		name:  "a service with an unknown scheduler",
		send:  func(b *Batch) { b.NewService(Service{ServiceKey: DNS6, Scheduler: "nosuch"}) },
		errno: syscall.ENOENT, is: ErrNoModule,
	},
	{
		name: "a service with an unknown persistence engine",
		send: func(b *Batch) {
			b.NewService(Service{ServiceKey: DNS6, Scheduler: "rr", PersistenceEngine: "nosuch"})
		},
		errno: syscall.ENOENT, is: ErrNoModule,
	},
	{name: "a service without scheduler", send: func(b *Batch) {
		b.NewService(Service{ServiceKey: DNS6, Scheduler: "none"})
	}},
	{name: "a service by mark", send: func(b *Batch) { b.NewService(Wanted(Marks)) }},
	{
		name: "the same mark in the other family",
		send: func(b *Batch) {
			b.NewService(Wanted(Marks))
			b.NewService(Wanted(MarkService(FamilyIPv6, 7)))
		},
	},
	{
		name:  "the same mark twice",
		send:  func(b *Batch) { b.NewService(Wanted(Marks)); b.NewService(Wanted(Marks)) },
		errno: syscall.EEXIST, is: ErrExists,
	},
	{
		name: "the same address and port with another protocol",
		send: func(b *Batch) {
			b.NewService(Wanted(AddressService(UDP, netip.AddrPortFrom(Web.Addr, Web.Port))))
		},
	},
	{name: "an unchanged service", send: func(b *Batch) { b.SetService(Wanted(Web)) }},
	{name: "a change of a missing service", send: func(b *Batch) {
		b.SetService(Wanted(DNS6))
	}, errno: syscall.ESRCH, is: ErrNoService},
	{
		name:  "a change to an unknown scheduler",
		send:  func(b *Batch) { b.SetService(Service{ServiceKey: Web, Scheduler: "nosuch"}) },
		errno: syscall.ENOENT, is: ErrNoModule,
	},
	{name: "removal of a service", send: func(b *Batch) { b.DelService(Web) }},
	{name: "removal of a missing service", send: func(b *Batch) {
		b.DelService(DNS6)
	}, errno: syscall.ESRCH, is: ErrNoService},
	{name: "a new destination", send: func(b *Batch) {
		b.NewDestination(Web, Dest("10.244.1.3:8080"))
	}},
	{name: "the same address with another port", send: func(b *Batch) {
		b.NewDestination(Web, Dest("10.244.1.1:8081"))
	}},
	{
		name: "a destination that exists", send: func(b *Batch) {
			b.NewDestination(Web, Dest("10.244.1.1:8080"))
		},
		errno: syscall.EEXIST, is: ErrExists,
	},
	{
		name: "a destination of a missing service", send: func(b *Batch) {
			b.NewDestination(DNS6, Dest("[2001:db8::2]:53"))
		},
		errno: syscall.ESRCH, is: ErrNoService,
	},
	{
		name: "a broadcast destination", send: func(b *Batch) {
			b.NewDestination(Web, Dest("255.255.255.255:80"))
		},
		errno: syscall.EINVAL,
	},
	{
		name: "a link-local destination that is not ours",
		send: func(b *Batch) {
			b.NewService(Wanted(DNS6))
			b.NewDestination(DNS6, Dest("[fe80::1]:53"))
		}, errno: syscall.EINVAL,
	},
	{
		name: "a tunnel to the other family",
		send: func(b *Batch) {
			b.NewDestination(Web, Destination{DestinationKey: DestKey("[2001:db8::2]:80"),
				Weight: 1, Forward: ForwardTunnel})
		},
	},
	{
		name: "masquerade to the other family", send: func(b *Batch) {
			raw(b, CommandNewDestination, Web, Dest("[2001:db8::2]:80"))
		},
		errno: syscall.EINVAL,
	},
	{
		name: "a weight beyond the kernel's int",
		send: func(b *Batch) {
			raw(b, CommandNewDestination, Web, Destination{DestinationKey: DestKey("10.244.1.3:80"),
				Weight: 1 << 31})
		},
		errno: syscall.ERANGE,
	},
	{
		name: "a lower threshold above the upper",
		send: func(b *Batch) {
			raw(b, CommandSetDestination, Web, Destination{DestinationKey: DestKey("10.244.1.3:80"),
				LowerThreshold: 1})
		},
		errno: syscall.ERANGE,
	},
	{name: "a change of a destination", send: func(b *Batch) {
		b.SetDestination(Web, Dest("10.244.1.1:8080"))
	}},
	{
		name: "a change of a missing destination", send: func(b *Batch) {
			b.SetDestination(Web, Dest("10.244.1.3:8080"))
		},
		errno: syscall.ENOENT, is: ErrNoDestination,
	},
	{
		name: "a change of a destination of a missing service", send: func(b *Batch) {
			b.SetDestination(DNS6, Dest("[2001:db8::2]:53"))
		},
		errno: syscall.ESRCH, is: ErrNoService,
	},
	{name: "removal of a destination", send: func(b *Batch) {
		b.DelDestination(Web, DestKey("10.244.1.1:8080"))
	}},
	{
		name: "removal of a missing destination", send: func(b *Batch) {
			b.DelDestination(Web, DestKey("10.244.1.3:8080"))
		},
		errno: syscall.ENOENT, is: ErrNoDestination,
	},
	{
		name:  "removal of a destination of a missing service",
		send:  func(b *Batch) { b.DelDestination(DNS6, DestKey("[2001:db8::2]:53")) },
		errno: syscall.ESRCH, is: ErrNoService,
	},
	{
		name: "a command that does not exist", send: func(b *Batch) {
			raw(b, CommandFlush+1, Web, Destination{})
		},
		errno: syscall.EOPNOTSUPP,
	},
	{
		name: "a service that is not named", send: func(b *Batch) {
			b.Raw(CommandDelService, func(*rawnl.Batch) {})
		}, errno: syscall.EINVAL,
	},
	{
		name: "a service without settings", send: func(b *Batch) {
			rawKey(b, CommandNewService, DNS6)
		},
		errno: syscall.EINVAL,
	},
	{
		name: "a destination without settings",
		send: func(b *Batch) {
			b.Raw(CommandNewDestination, func(w *rawnl.Batch) {
				PutServiceKey(w, Web)
				m := w.Nest(CmdAttrDestination)
				PutDestinationKey(w, DestKey("10.0.0.1:1"))
				w.End(m)
			})
		},
		errno: syscall.EINVAL,
	},
	{
		name:  "a missing service without settings to change",
		send:  func(b *Batch) { rawKey(b, CommandSetService, DNS6) },
		errno: syscall.EINVAL,
	},
	{
		name: "another family", send: func(b *Batch) {
			rawKey(b, CommandDelService, ServiceKey{Family: 1, FWMark: 1})
		},
		errno: syscall.EAFNOSUPPORT,
	},
	{
		name: "an IPv6 prefix of no bits",
		send: func(b *Batch) {
			s := Wanted(DNS6)
			s.Netmask = NoPrefix
			rawService(b, CommandNewService, s)
		},
		errno: syscall.EINVAL,
	},
}

// raw adds a command about a destination without looking at it.
func raw(b *Batch, cmd Command, k ServiceKey, d Destination) {
	b.Raw(cmd, func(w *rawnl.Batch) {
		PutServiceKey(w, k)
		m := w.Nest(CmdAttrDestination)
		PutDestination(w, d)
		w.End(m)
	})
}

// rawService adds a command about a whole service without looking at it.
func rawService(b *Batch, cmd Command, s Service) {
	b.Raw(cmd, func(w *rawnl.Batch) {
		m := w.Nest(CmdAttrService)
		PutService(w, s)
		w.End(m)
	})
}

// rawKey adds a command with nothing but the key of a service.
func rawKey(b *Batch, cmd Command, k ServiceKey) {
	b.Raw(cmd, func(w *rawnl.Batch) { PutServiceKey(w, k) })
}

// testRefusals tries all refusals, each with a client of its own.
func testRefusals(t *testing.T, dial func(t *testing.T) *Client) {
	t.Helper()
	for _, tt := range refusals {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := dial(t)
			require.NoError(t, submit(t, c, func(b *Batch) {
				b.NewService(Wanted(Web))
				b.NewDestination(Web, Dest("10.244.1.1:8080"))
				b.NewDestination(Web, Dest("10.244.1.2:8080"))
			}))
			err := submit(t, c, tt.send)
			if tt.errno == 0 {
				require.NoError(t, err)
				return
			}
			var refusal *rawnl.OpError
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, tt.errno.Error(), refusal.Errno.Error())
			for _, sentinel := range []error{ErrExists, ErrNoService, ErrNoDestination,
				ErrNoModule} {
				require.Equal(t, sentinel == tt.is, errors.Is(err, sentinel), "%v", sentinel)
			}
		})
	}
}

// services are services of all kinds.
var services = []Service{
	Wanted(Web),
	{ServiceKey: AddressService(TCP, AddrPort("10.96.0.2:0")), Scheduler: "wlc",
		Flags: FlagPersistent, Timeout: 3 * time.Hour},
	{ServiceKey: AddressService(SCTP, AddrPort("10.96.0.2:80")), Scheduler: "lc",
		Timeout: MaxPersistence},
	OPS, SIP,
	{ServiceKey: DNS6, Scheduler: "mh", Flags: FlagHashPort | FlagFallback | FlagPersistent,
		Netmask: Mask(FamilyIPv6, 64)},
	{ServiceKey: Marks, Scheduler: "sh", Flags: FlagHashPort, Netmask: Mask(FamilyIPv4, 0)},
	{ServiceKey: MarkService(FamilyIPv6, 0xffffffff), Scheduler: "none",
		Flags: FlagSchedulerThree},
}

// destinationsOf are destinations of all kinds, of some of services.
var destinationsOf = map[ServiceKey][]Destination{
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

// testReadback writes services and destinations of all kinds and reads them again.
func testReadback(t *testing.T, dial func(t *testing.T) *Client) {
	t.Helper()
	c := dial(t)
	ctx := t.Context()
	destinations := make([][]Destination, len(services))
	require.NoError(t, submit(t, c, func(b *Batch) {
		for i, s := range services {
			destinations[i] = destinationsOf[s.ServiceKey]
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
	requireMissing(t, c)
}

// requireMissing asks for a service that is not there.
func requireMissing(t *testing.T, c *Client) {
	t.Helper()
	ctx := t.Context()
	missing := AddressService(TCP, AddrPort("10.96.9.9:80"))
	_, err := c.Service(ctx, missing)
	require.ErrorIs(t, err, ErrNoService)
	_, err = c.Destinations(ctx, missing)
	require.ErrorIs(t, err, ErrNoService)
	lists, err := c.AllDestinations(ctx, []ServiceKey{missing, Marks})
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
	full := Service{ServiceKey: Web, Scheduler: "sh", Flags: FlagPersistent | FlagHashPort,
		Timeout: time.Minute,
		Netmask: Mask(FamilyIPv4, 24), PersistenceEngine: "sip"}
	tunnel := Destination{DestinationKey: DestKey("10.244.1.1:8080"), Weight: 7,
		Forward: ForwardTunnel, UpperThreshold: 9, LowerThreshold: 3}
	plain := Dest("10.244.1.1:8080")
	requireIs := func(s Service, d Destination) {
		t.Helper()
		o, err := c.Service(ctx, Web)
		require.NoError(t, err)
		require.Equal(t, ObservedService{Service: s, Hashed: true}, o)
		list, err := c.Destinations(ctx, Web)
		require.NoError(t, err)
		require.Equal(t, []ObservedDestination{{Destination: d}}, list)
	}
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.NewService(full)
		b.NewDestination(Web, tunnel)
	}))
	requireIs(full, tunnel)
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.SetService(Wanted(Web))
		b.SetDestination(Web, plain)
	}))
	requireIs(Wanted(Web), plain)
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.SetService(full)
		b.SetDestination(Web, tunnel)
	}))
	requireIs(full, tunnel)
	drained := tunnel
	drained.Weight = 0
	require.NoError(t, submit(t, c, func(b *Batch) { b.SetDestination(Web, drained) }))
	requireIs(full, drained)
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.DelService(Web)
		b.NewService(Wanted(Web))
	}))
	list, err := c.Destinations(ctx, Web)
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

	require.NoError(t, submit(t, c, func(b *Batch) {
		b.NewService(Wanted(Web))
		b.NewService(Wanted(Marks))
	}))
	info, err = c.Info(ctx)
	require.NoError(t, err)
	require.NotZero(t, info.ConnTableSize)
}

// fakeDial returns a client of a new fake.
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
