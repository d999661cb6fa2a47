package ipvs

import (
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/test/must"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// allSchedulers are the schedulers of IPVS, with and without options.
func allSchedulers() []sm.Scheduler {
	var l []sm.Scheduler
	for _, s := range schedulers {
		l = append(l, s)
		for _, options := range []sm.Scheduler{"+port", "+fallback", "+port+fallback"} {
			if hasScheduler(s + options) {
				l = append(l, s+options)
			}
		}
	}

	return l
}

// The numbers of schedulers are a format: virtual servers of an older program have them in their
// flags, in four bits.
func TestNumbersOfSchedulersStay(t *testing.T) {
	t.Parallel()
	names := "|rr|wrr|lc|wlc|lblc|lblcr|sh|dh|sed|nq|mh|fo|ovf"
	for i, name := range strings.Split(names, "|") {
		require.Equal(t, sm.Scheduler(name), schedulers[i])
	}
	require.LessOrEqual(t, len(schedulers), schedulerMask>>schedulerShift+1)
	require.Equal(t, ipvsnl.ServiceFlags(0x3b00), askedFlags("mh+port+fallback"))
	for _, s := range allSchedulers() {
		require.Equal(t, s, askedScheduler(askedFlags(s)))
		require.Equal(t, s != sm.SchedulerDefault, hasScheduler(s), "%q", s)
		if s != sm.SchedulerDefault {
			ok(sm.ParseScheduler(string(s)))(t)
		}
	}

	require.False(t, hasScheduler("rr+port"))
	require.False(t, hasScheduler("random"))
}

func TestOptionsOfSchedulersAreInThePlan(t *testing.T) {
	t.Parallel()
	for want, text := range map[sm.Scheduler]string{
		"":                 "-s mh -b mh-fallback\n", // as configured
		"sh":               "-s sh\n",
		"sh+port":          "-s sh -b sh-port\n",
		"mh+fallback":      "-s mh -b mh-fallback\n",
		"sh+port+fallback": "-s sh -b sh-port,sh-fallback\n",
	} {
		svc := goldenService(func(s *sm.Service) { s.Scheduler = want })
		table := resolve(t, nil, sm.State{}.WithNode(goldenNode()).
			WithService(svc).WithEndpoints(svc.Name, goldenEndpoints("10.244.1.1")))
		b := withoutKernel(t, Config{Scheduler: "mh+fallback"})
		p := b.pl.plan(sm.Diff(nil, table))
		require.Contains(t, p.String(), "-A -t 10.96.0.10:80 "+text)
	}
}

// A virtual server shows the pool for which it was made, unless all of its destinations drain.
func TestServersShowTheirPools(t *testing.T) {
	t.Parallel()
	b := withoutKernel(t)
	fe := &sm.Frontend{Key: sm.FrontendKey{
		Addr: netip.MustParseAddr("10.96.0.10"), Protocol: sm.TCP, Port: 80}}
	k := ipvsnl.AddressService(ipvsnl.TCP, netip.AddrPortFrom(fe.Key.Addr, fe.Key.Port))
	for _, forwarding := range []sm.Forwarding{sm.ForwardNAT, sm.ForwardDirect, sm.ForwardTunnel} {
		p := &sm.Pool{Forwarding: forwarding, Scheduler: sm.LeastConn, Slots: []sm.Slot{
			{Endpoint: netip.MustParseAddrPort("10.244.1.1:80"), Weight: 1},
			{Endpoint: netip.MustParseAddrPort("10.244.1.2:80"), Weight: 0xffff}}}
		s := b.pl.server(k, fe, p, false)
		require.Equal(t, p, s.pool(p.ID))
		for key, d := range s.dests {
			d.Weight = 0
			s.dests[key] = d
		}

		require.Nil(t, s.pool(p.ID))
	}
}

// The error of a faulty configuration names the field, before anything is opened.
func TestConfigurationsAreChecked(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		want string
		cfg  Config
	}{
		{"table name", Config{Table: "9"}},
		{"scheduler", Config{Scheduler: sm.Random}},
		{"AffinityMask4", Config{AffinityMask4: 33}},
		{"AffinityMask4", Config{AffinityMask4: -1}},
		{"AffinityMask6", Config{AffinityMask6: 129}},
		{"Device", Config{Device: "a name that is too long"}},
		{"Device", Config{Device: "a/b"}},
		{"Device", Config{Device: ".."}},
		{"StrictARP", Config{StrictARP: true}},
		{"Timeouts", Config{Timeouts: Timeouts{TCP: -time.Second}}},
		{"Timeouts", Config{Timeouts: Timeouts{UDP: 1500 * time.Millisecond}}},
	} {
		_, err := openBackend(&tc.cfg)
		require.ErrorContains(t, err, tc.want)
	}

	ok((&Config{Device: "kernlb0", StrictARP: true, AffinityMask4: 24, AffinityMask6: 1}).
		withDefaults())(t)
}

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }

// The kernel's table of a hash has all endpoints, whatever their number and weights, and the
// virtual server shows the weights of the model. If they do not fit sh, mh is used.
func TestTheTableOfAHashHasRoomForAllEndpoints(t *testing.T) {
	t.Parallel()
	r, b := rand.New(rand.NewPCG(41, 1)), withoutKernel(t)
	fe := &sm.Frontend{Key: sm.FrontendKey{
		Addr: netip.MustParseAddr("10.96.0.10"), Protocol: sm.TCP, Port: 80}}
	k := ipvsnl.AddressService(ipvsnl.TCP, netip.AddrPortFrom(fe.Key.Addr, fe.Key.Port))
	for range 120 {
		p, sum := &sm.Pool{Scheduler: []sm.Scheduler{"sh", "mh+port"}[r.IntN(2)]}, 0
		greatest := []uint{1, 2, 30, 1000, 60000}[r.IntN(5)]
		n := 1 + r.IntN([]int{20, 256, 300, 4093}[r.IntN(4)])
		if r.IntN(4) == 0 {
			n = []int{256, 257, 4093}[r.IntN(3)]
		}
		for i := range n {
			w := uint16(1 + r.UintN(greatest))
			if r.IntN(100) == 0 {
				w = 60000
			}
			sum += int(w)
			a := netip.AddrFrom4([4]byte{10, 0, byte(i / 256), byte(i)})
			p.Slots = append(p.Slots, sm.Slot{Weight: w, Endpoint: netip.AddrPortFrom(a, 80)})
		}

		s := b.pl.server(k, fe, p, false)
		name, port, _ := p.Scheduler.Split()
		if n > 256 {
			name = sm.Maglev
		}
		require.Equal(t, string(name), s.svc.Scheduler)
		require.Equal(t, port, s.svc.Flags&ipvsnl.FlagHashPort != 0)
		require.Equal(t, p.Scheduler, askedScheduler(s.svc.Flags))

		size := hashTables[name]
		entries := kernelTable(s, size)
		for _, slot := range p.Slots {
			k := ipvsnl.DestinationKey{Addr: slot.Endpoint.Addr(), Port: 80}
			want := float64(size) * float64(slot.Weight) / float64(sum)
			require.Positive(t, entries[k], "%v of %d", k, n)
			if name == sm.SourceHash && sum > size && n <= 20 && greatest > 2 {
				require.InDelta(t, want, entries[k], float64(len(p.Slots)), "%v", p.Slots)
			}
		}

		require.Equal(t, p.Slots, s.pool(p.ID).Slots)
	}
}

// kernelTable returns the number of entries that each destination has in the table of a virtual
// server's scheduler (ip_vs_sh_reassign, ip_vs_mh_populate).
func kernelTable(s *server, size int) map[ipvsnl.DestinationKey]int {
	turns := map[ipvsnl.DestinationKey]int{}
	greatest, divisor := 0, 0
	for k, d := range s.dests {
		turns[k] = int(d.Weight)
		greatest = max(greatest, turns[k])
		for a, b := turns[k], divisor; ; a, b = b, a%b {
			if b == 0 {
				divisor = a
				break
			}
		}
	}

	if s.svc.Scheduler == string(sm.Maglev) {
		shift := max(bits.Len(uint(greatest/divisor))-6, 0) // ip_vs_mh_shift_weight
		for k, w := range turns {
			turns[k] = max(w/divisor>>shift, 1)
		}
	}

	entries := map[ipvsnl.DestinationKey]int{}
	for size > 0 {
		for _, k := range sortedDests(s.dests) {
			n := min(size, turns[k])
			entries[k] += n
			size -= n
		}
	}

	return entries
}

// A pool that fits no table is refused, and so is a pool whose only table the kernel lacks.
func TestMoreEndpointsThanEntriesAreRefused(t *testing.T) {
	t.Parallel()
	changes := func(by sm.Scheduler, n int) *sm.ChangeSet {
		svc := &sm.Service{Name: sm.Name{Namespace: "default", Name: "web"}, Scheduler: by,
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
			Ports:      []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}}
		var eps []sm.Endpoint
		for i := range n {
			eps = append(eps, sm.Endpoint{Ports: []sm.EndpointPort{{Protocol: sm.TCP,
				Port: 8080}}, Addr: netip.AddrFrom4([4]byte{10, 0, byte(i / 256), byte(i)})})
		}

		state := sm.State{}.WithService(svc).WithEndpoints(svc.Name, eps)
		return sm.Diff(nil, ok(sm.Resolve(nil, state))(t))
	}

	lacking := map[string]bool{"mh": true}
	for _, by := range []sm.Scheduler{"sh", "mh+port"} {
		require.NoError(t, Check(changes(by, 4093)))
		require.ErrorContains(t, Check(changes(by, 4094)), "4094 endpoints")
	}

	require.NoError(t, check(changes("sh", 256), "", lacking))
	require.ErrorContains(t, check(changes("sh", 257), "", lacking), "table of sh has 256 entries")
	require.NoError(t, check(changes("", 4094), "wlc", nil))
	require.ErrorContains(t, check(changes("", 4094), "sh", nil), "4094 endpoints")
}

// Weights that fit a table fill it.
func TestReducedWeightsFillTheTable(t *testing.T) {
	t.Parallel()
	p := &sm.Pool{Slots: make([]sm.Slot, 4)}
	for i := range p.Slots {
		p.Slots[i].Weight = 1000
	}
	require.Equal(t, 64, reduction(p, 256)(1000))
	require.Nil(t, reduction(p, 4000), "they fit as they are")
	require.Equal(t, 999, reduction(p, 3999)(1000), "the rest of the table is not enough for all")
}
