package ipvsnl_test

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/ipvsfake"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

// refusals are requests and the kernel's answers: nil, an errno, or the error that it stands for.
// The namespace has the service web with 10.244.1.1:8080 and 10.244.1.2:8080. Here ipvsfake
// answers. TestKernelIsLikeTheFake sends the same requests to real kernels, and so shows that
// ipvsfake is right.
var refusals = []struct {
	name string
	send func(b *Batch)
	want error
}{
	{"a new service", newService(Wanted(DNS6)), nil},
	{"a service that exists", newService(Wanted(Web)), ErrExists},
	{"a service that exists, with a scheduler that does not",
		newService(Service{ServiceKey: Web, Scheduler: "nosuch"}), ErrExists},
	{"a service with an unknown scheduler",
		newService(Service{ServiceKey: DNS6, Scheduler: "nosuch"}), ErrNoModule},
	{"a service with an unknown persistence engine", newService(Service{ServiceKey: DNS6,
		Scheduler: "rr", PersistenceEngine: "nosuch"}), ErrNoModule},
	{"a service without scheduler", newService(Service{ServiceKey: DNS6, Scheduler: "none"}), nil},
	{"a service by mark", newService(Wanted(Marks)), nil},
	{"the same mark in the other family",
		newService(Wanted(Marks), Wanted(MarkService(FamilyIPv6, 7))), nil},
	{"the same mark twice", newService(Wanted(Marks), Wanted(Marks)), ErrExists},
	{"the same address and port with another protocol",
		newService(Wanted(AddressService(UDP, netip.AddrPortFrom(Web.Addr, Web.Port)))), nil},
	{"an unchanged service", setService(Wanted(Web)), nil},
	{"a change of a missing service", setService(Wanted(DNS6)), ErrNoService},
	{"a change to an unknown scheduler",
		setService(Service{ServiceKey: Web, Scheduler: "nosuch"}), ErrNoModule},
	{"removal of a service", func(b *Batch) { b.DelService(Web) }, nil},
	{"removal of a missing service", func(b *Batch) { b.DelService(DNS6) }, ErrNoService},
	{"a new destination", newDest(Web, Dest("10.244.1.3:8080")), nil},
	{"the same address with another port", newDest(Web, Dest("10.244.1.1:8081")), nil},
	{"a destination that exists", newDest(Web, Dest("10.244.1.1:8080")), ErrExists},
	{"a destination of a missing service", newDest(DNS6, Dest("[2001:db8::2]:53")), ErrNoService},
	{"a broadcast destination", newDest(Web, Dest("255.255.255.255:80")), syscall.EINVAL},
	{"a link-local destination that is not ours", func(b *Batch) {
		b.NewService(Wanted(DNS6))
		b.NewDestination(DNS6, Dest("[fe80::1]:53"))
	}, syscall.EINVAL},
	{"a tunnel to the other family", newDest(Web, Destination{
		DestinationKey: DestKey("[2001:db8::2]:80"), Weight: 1, Forward: ForwardTunnel}), nil},
	{"masquerade to the other family", newDest(Web, Dest("[2001:db8::2]:80")), syscall.EINVAL},
	{"a weight beyond the kernel's int", newDest(Web,
		Destination{DestinationKey: DestKey("10.244.1.3:80"), Weight: 1 << 31}), syscall.ERANGE},
	{"a lower threshold above the upper", setDest(Web,
		Destination{DestinationKey: DestKey("10.244.1.3:80"), LowerThreshold: 1}), syscall.ERANGE},
	{"a change of a destination", setDest(Web, Dest("10.244.1.1:8080")), nil},
	{"a change of a missing destination", setDest(Web, Dest("10.244.1.3:8080")), ErrNoDestination},
	{"a change of a destination of a missing service",
		setDest(DNS6, Dest("[2001:db8::2]:53")), ErrNoService},
	{"removal of a destination", delDest(Web, "10.244.1.1:8080"), nil},
	{"removal of a missing destination", delDest(Web, "10.244.1.3:8080"), ErrNoDestination},
	{"removal of a destination of a missing service",
		delDest(DNS6, "[2001:db8::2]:53"), ErrNoService},
	{"a command that does not exist", rawKey(Command(18), Web), syscall.EOPNOTSUPP},
	{"a service that is not named",
		func(b *Batch) { b.Raw(CommandDelService, func(*rawnl.Batch) {}) }, syscall.EINVAL},
	{"a service without settings", rawKey(CommandNewService, DNS6), syscall.EINVAL},
	{"a destination without settings", func(b *Batch) {
		b.Raw(CommandNewDestination, func(w *rawnl.Batch) {
			PutServiceKey(w, Web)
			m := w.Nest(CmdAttrDestination)
			PutDestinationKey(w, DestKey("10.0.0.1:1"))
			w.End(m)
		})
	}, syscall.EINVAL},
	{"a missing service without settings to change", rawKey(CommandSetService, DNS6),
		syscall.EINVAL},
	{"another family", rawKey(CommandDelService, ServiceKey{Family: 1, FWMark: 1}),
		syscall.EAFNOSUPPORT},
	{"an IPv6 prefix of no bits",
		newService(Service{ServiceKey: DNS6, Scheduler: "rr", Netmask: 128}), syscall.EINVAL},
}

// Each of the functions below returns a function that adds a command to a batch.

func newService(services ...Service) func(b *Batch) {
	return func(b *Batch) {
		for _, s := range services {
			b.NewService(s)
		}
	}
}

func setService(s Service) func(b *Batch) { return func(b *Batch) { b.SetService(s) } }

func newDest(k ServiceKey, d ...Destination) func(b *Batch) {
	return func(b *Batch) {
		for _, d := range d {
			b.NewDestination(k, d)
		}
	}
}

func setDest(k ServiceKey, d Destination) func(b *Batch) {
	return func(b *Batch) { b.SetDestination(k, d) }
}

func delDest(k ServiceKey, d string) func(b *Batch) {
	return func(b *Batch) { b.DelDestination(k, DestKey(d)) }
}

// rawKey adds a command with only the key of a service.
func rawKey(cmd Command, k ServiceKey) func(b *Batch) {
	return func(b *Batch) { b.Raw(cmd, func(w *rawnl.Batch) { PutServiceKey(w, k) }) }
}

// meanings are the errors that errnos stand for.
var meanings = map[error]syscall.Errno{ErrExists: syscall.EEXIST, ErrNoService: syscall.ESRCH,
	ErrNoDestination: syscall.ENOENT, ErrNoModule: syscall.ENOENT}

// testRefusals tries all refusals, each with a client of its own.
func testRefusals(t *testing.T, dial func(t *testing.T) *Client) {
	t.Helper()
	for _, tt := range refusals {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := dial(t)
			require.NoError(t, submit(t, c, newService(Wanted(Web))))
			require.NoError(t, submit(t, c, newDest(Web, Dest("10.244.1.1:8080"),
				Dest("10.244.1.2:8080"))))
			err := submit(t, c, tt.send)
			if tt.want == nil {
				require.NoError(t, err)
				return
			}
			var refusal *rawnl.OpError
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, tt.want, cmp.Or[error](refusal.Meaning, refusal.Errno))
			if errno, stands := meanings[tt.want]; stands {
				require.Equal(t, errno, refusal.Errno)
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
		Timeout: 31 * 24 * time.Hour},
	OPS, SIP,
	{ServiceKey: DNS6, Scheduler: "mh", Flags: FlagHashPort | FlagFallback | FlagPersistent,
		Netmask: PrefixNetmask(FamilyIPv6, 64)},
	{ServiceKey: Marks, Scheduler: "sh", Flags: FlagHashPort,
		Netmask: PrefixNetmask(FamilyIPv4, 0)},
	{ServiceKey: MarkService(FamilyIPv6, 0xffffffff), Scheduler: "none", Flags: 0x20},
}

// destinationsOf are destinations of all kinds, for some of services.
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

	observed := servicesOf(t, c)
	var got []Service
	var keys []ServiceKey
	for _, o := range observed {
		require.Zero(t, o.Stats)
		got, keys = append(got, o.Service), append(keys, o.ServiceKey)
	}
	require.ElementsMatch(t, services, got)
	require.True(t, slices.IsSortedFunc(keys, ServiceKey.Compare))

	for i, s := range services {
		list := allDestsOf(t, c, []ServiceKey{s.ServiceKey})[0]
		one := destsOf(t, c, s.ServiceKey)
		require.Equal(t, list, one)
		var got []Destination
		for _, o := range list {
			require.Equal(t, ObservedDestination{Destination: o.Destination}, o)
			got = append(got, o.Destination)
		}
		require.Equal(t, destinations[i], got)
	}
	for _, s := range services {
		o := serviceOf(t, c, s.ServiceKey)
		require.Equal(t, ObservedService{Service: s}, o)
	}
	requireMissing(t, c)
}

// requireMissing asks for a service that does not exist.
func requireMissing(t *testing.T, c *Client) {
	t.Helper()
	ctx := t.Context()
	missing := AddressService(TCP, AddrPort("10.96.9.9:80"))
	_, err := c.Service(ctx, missing)
	require.ErrorIs(t, err, ErrNoService)
	_, err = c.Destinations(ctx, missing)
	require.ErrorIs(t, err, ErrNoService)
	lists := allDestsOf(t, c, []ServiceKey{missing, Marks})
	require.Empty(t, lists[0])
	require.Len(t, lists[1], 1)
}

// testEdits changes what exists and reads it again.
func testEdits(t *testing.T, dial func(t *testing.T) *Client) {
	t.Helper()
	c := dial(t)
	full := Service{ServiceKey: Web, Scheduler: "sh", Flags: FlagPersistent | FlagHashPort,
		Timeout: time.Minute,
		Netmask: PrefixNetmask(FamilyIPv4, 24), PersistenceEngine: "sip"}
	tunnel := Destination{DestinationKey: DestKey("10.244.1.1:8080"), Weight: 7,
		Forward: ForwardTunnel, UpperThreshold: 9, LowerThreshold: 3}
	plain := Dest("10.244.1.1:8080")
	requireIs := func(s Service, d Destination) {
		t.Helper()
		o := serviceOf(t, c, Web)
		require.Equal(t, ObservedService{Service: s}, o)
		list := destsOf(t, c, Web)
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
	require.NoError(t, submit(t, c, setDest(Web, drained)))
	requireIs(full, drained)
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.DelService(Web)
		b.NewService(Wanted(Web))
	}))
	list := destsOf(t, c, Web)
	require.Empty(t, list, "a service goes with its destinations")
}

// testSettings tries the commands that concern the whole network namespace.
func testSettings(t *testing.T, dial func(t *testing.T) *Client) {
	t.Helper()
	c := dial(t)
	ctx := t.Context()
	fresh := Timeouts{TCP: 15 * time.Minute, TCPFin: 2 * time.Minute, UDP: 5 * time.Minute}
	got := ok(c.Timeouts(ctx))(t)
	require.Equal(t, fresh, got)
	require.NoError(t, c.SetTimeouts(ctx, Timeouts{TCP: time.Hour}))
	require.NoError(t, c.SetTimeouts(ctx, Timeouts{UDP: time.Second}))
	require.NoError(t, c.SetTimeouts(ctx, Timeouts{}))
	got = ok(c.Timeouts(ctx))(t)
	require.Equal(t, Timeouts{TCP: time.Hour, TCPFin: 2 * time.Minute, UDP: time.Second}, got)
}

// likeTheKernel are the tests that both the fake and the kernel pass.
var likeTheKernel = map[string]func(t *testing.T, dial func(t *testing.T) *Client){
	"refusals": testRefusals, "readback": testReadback, "edits": testEdits,
	"settings": testSettings,
}

// fakeDial returns a client of a new fake.
func fakeDial(t *testing.T) *Client {
	t.Helper()
	c, _ := fakeClient(t)
	return c
}

func TestTheFakeIsLikeTheKernel(t *testing.T) {
	t.Parallel()
	for name, test := range likeTheKernel {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t, fakeDial) })
	}
}

func TestTheFakeMixesFlagsAsTheKernelDoes(t *testing.T) {
	t.Parallel()
	c, _ := fakeClient(t)
	s := Wanted(Web)
	s.Flags = FlagPersistent | FlagHashPort
	require.NoError(t, submit(t, c, newService(s)))
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.Raw(CommandSetService, func(w *rawnl.Batch) {
			m := w.Nest(CmdAttrService)
			PutService(w, Wanted(Web))
			w.Attr(SvcAttrFlags, binary.NativeEndian.AppendUint32(make([]byte, 4),
				uint32(FlagPersistent))) // the last flags count
			w.End(m)
		})
	}))
	o := serviceOf(t, c, Web)
	require.Equal(t, FlagHashPort, o.Flags)
}

// FuzzFake feeds the fake kernel with requests. The fake must be able to list every object that it
// accepts.
func FuzzFake(f *testing.F) {
	var b Batch
	b.NewService(Wanted(Web))
	b.NewDestination(Web, Dest("10.244.1.1:8080"))
	b.SetService(SIP)
	f.Add(append([]byte(nil), b.Wire().Bytes()...))
	b.DelService(Web)
	f.Add(b.Wire().Bytes())
	f.Fuzz(func(t *testing.T, request []byte) {
		c, k := fakeClient(t)
		require.NoError(t, submit(t, c, func(b *Batch) {
			b.NewService(Wanted(Web))
			b.NewDestination(Web, Dest("10.0.0.1:80"))
		}))
		messages, _ := rawnltest.Split(request) // only the whole messages
		for i := range messages {
			messages[i].Type = ipvsfake.Family
		}
		k.Answer(messages)
		services := servicesOf(t, c)
		require.Len(t, services, len(k.Keys()))
		for _, s := range services {
			destsOf(t, c, s.ServiceKey)
		}
	})
}
