package mirror

import (
	"context"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	ct "github.com/kernlb/kernlb/conntrack"
	. "github.com/kernlb/kernlb/internal/test/cttest"
)

// The memory of a mirror for a flow, and the time for adding and removing it.
func BenchmarkMirrorIndex(b *testing.B) {
	const n = 1_000_000
	for _, c := range []struct {
		name string
		flow func(i int) ct.Flow
	}{
		{"IPv4, 100 frontends of 10 endpoints", func(i int) ct.Flow {
			return indexed(i, 10, 96, byte(i%100), i/100%10)
		}},
		{"IPv4, all to different places", func(i int) ct.Flow {
			return indexed(i, byte(20+i>>16), byte(i>>8), byte(i), -1)
		}},
		{"IPv6, 100 frontends of 10 endpoints", func(i int) ct.Flow {
			return over6(indexed(i, 10, 96, byte(i%100), i/100%10))
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var adding, removing time.Duration
			var size uint64
			for b.Loop() {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				x := newIndex()
				start := time.Now()
				for i := range n {
					f := c.flow(i)
					x.add(&f)
				}
				adding += time.Since(start)
				require.Equal(b, n, x.len())
				runtime.GC()
				runtime.ReadMemStats(&after)
				size = after.HeapAlloc - before.HeapAlloc
				start = time.Now()
				for i := range n {
					f := c.flow(i)
					x.remove(&f)
				}
				removing += time.Since(start)
				require.Zero(b, x.len())
				require.Zero(b, x.v4.paths.n+x.v6.paths.n)
			}
			b.ReportMetric(float64(size)/n, "B/flow")
			b.ReportMetric(float64(adding.Nanoseconds())/float64(b.N)/n, "ns/added")
			b.ReportMetric(float64(removing.Nanoseconds())/float64(b.N)/n, "ns/removed")
		})
	}
}

// indexed returns a UDP flow to 10.96.0.0 and so on. It goes to an endpoint, or is not translated
// if endpoint is negative.
func indexed(i int, a, b, c byte, endpoint int) ct.Flow {
	f := ct.Flow{Protocol: ct.UDP, ID: uint32(i) * 0x9e3779b1}
	f.Original.Src = netip.AddrPortFrom(
		netip.AddrFrom4([4]byte{10, 1, byte(i >> 16), byte(i >> 8)}), uint16(1024+i&0xff))
	f.Original.Dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte{a, b, 0, c}), 53)
	if endpoint < 0 {
		f.Original.Dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte{9, a, b, c}), 53)
	}
	f.Reply = ct.Tuple{Src: f.Original.Dst, Dst: f.Original.Src}
	if endpoint >= 0 {
		f.Reply.Src = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, c, byte(endpoint)}), 5353)
	}
	return f
}

// over6 returns a flow with IPv6 addresses that end in those of f.
func over6(f ct.Flow) ct.Flow {
	for _, a := range []*netip.AddrPort{&f.Original.Src, &f.Original.Dst, &f.Reply.Src,
		&f.Reply.Dst} {
		b := a.Addr().As16()
		b[0], b[10], b[11] = 0xfd, 0, 0
		*a = netip.AddrPortFrom(netip.AddrFrom16(b), a.Port())
	}
	return f
}

// The cost of a mirror while packets make flows: 200,000 datagrams over loopback, each of a flow of
// its own.
func BenchmarkNewFlows(b *testing.B) {
	for _, c := range []struct {
		name   string
		config *Config
	}{
		{"nobody listens", nil},
		{"mirror of UDP", &Config{}},
		{"mirror of SCTP", &Config{Protocols: []ct.Protocol{ct.SCTP}}},
	} {
		b.Run(c.name, func(b *testing.B) {
			const n = 200_000
			var m Meter
			var took time.Duration
			noted, losses := 0, 0
			for b.Loop() {
				table, ns := NewTable(b)
				Rules(b, ns, "", "ct state new accept")
				require.NoError(b, ns.Do(func() error { return sendEach(1, 0) }))
				stop := func() {}
				var x *Mirror
				if c.config != nil {
					x = OK(New(table, c.config))(b)
					stop = RunMirror(b, table, x)
					waitSynced(b, x)
				}
				m.Run(func() {
					start := time.Now()
					require.NoError(b, ns.Do(func() error { return sendEach(n, 1) }))
					took += time.Since(start)
					if x != nil {
						time.Sleep(100 * time.Millisecond) // it reads the rest
						noted, losses = x.Stats().Flows, x.Stats().Losses
					}
				})
				u := OK(table.Usage(context.Background()))(b)
				require.GreaterOrEqual(b, int(u.Count), n)
				stop()
			}
			b.ReportMetric(n*float64(b.N)/took.Seconds(), "flows/s")
			b.ReportMetric(1000*m.CPU/m.Runs/n, "cpu-us/flow")
			b.ReportMetric(float64(noted), "noted")
			b.ReportMetric(float64(losses), "losses")
		})
	}
}

// sendEach sends a datagram to each of n addresses of the loopback network.
func sendEach(n, from int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	sink := &unix.SockaddrInet4{Port: 5353}
	if err := unix.Bind(fd, sink); err != nil { // drops what it has no room for
		return err
	}
	for i := from; i < from+n; i++ {
		to := &unix.SockaddrInet4{Port: 5353, Addr: [4]byte{127, byte(1 + i>>16), byte(i >> 8),
			byte(i)}}
		if err := unix.Sendto(fd, []byte{0}, 0, to); err != nil {
			return err
		}
	}
	return nil
}
