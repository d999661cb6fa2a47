package silence_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// BenchmarkFollower measures the CPU time that a follower takes, in user space and in the kernel,
// at a rate of new connections: the difference between two loads, with and without it. The
// connections are flows that are written into the table.
func BenchmarkFollower(b *testing.B) {
	for _, rate := range []int{1000, 20_000} {
		b.Run(fmt.Sprint(rate), func(b *testing.B) {
			var with, without time.Duration
			for range b.N {
				without += load(b, rate, false)
				with += load(b, rate, true)
			}

			b.ReportMetric(100*(with-without).Seconds()/loadTime.Seconds()/float64(b.N), "%cpu")
		})
	}
}

const loadTime = 4 * time.Second

// load returns the CPU time of this process while flows are made at a rate.
func load(b *testing.B, rate int, follow bool) time.Duration {
	ns := nstest.New(b)
	table := must.OK(conntrack.Open(&conntrack.Config{NetNS: ns.NetNS()}))(b)
	defer table.Close()
	services := must.OK(servicemodel.Resolve(nil, service("10.0.0.1", "10.0.0.2")))(b)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var work sync.WaitGroup
	defer work.Wait()
	if follow {
		f := must.OK(silence.NewFollower(func(servicemodel.State) {}, &silence.Config{
			NetNS: ns.NetNS(), Table: func() *servicemodel.Table { return services }}))(b)
		work.Go(func() { _ = f.Run(ctx) })
		defer func() { stop(); work.Wait(); require.NoError(b, f.Close()) }()
	}

	const steps = 100 // a second
	before, tick := cpu(), time.NewTicker(time.Second/steps)
	defer tick.Stop()
	for i := range int(loadTime/time.Second) * steps {
		flows := make([]conntrack.Flow, rate/steps)
		for j := range flows {
			n := i*len(flows) + j
			addr := netip.AddrFrom4([4]byte{172, 16, byte(n >> 16), byte(n >> 8)})
			client := netip.AddrPortFrom(addr, uint16(1024+n%256))
			flows[j] = conntrack.Flow{Protocol: conntrack.TCP, Timeout: 3 * time.Second,
				TCP: conntrack.TCPEstablished, Status: conntrack.StatusSeenReply,
				Original: conntrack.Tuple{Src: client, Dst: frontend},
				Reply: conntrack.Tuple{Dst: client, Src: netip.AddrPortFrom(
					netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + n%2)}), port)}}
		}

		must.OK(table.Create(ctx, conntrack.All(flows...)))(b)
		<-tick.C
	}

	return cpu() - before
}

// cpu returns the CPU time of this process so far.
func cpu() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // it cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
