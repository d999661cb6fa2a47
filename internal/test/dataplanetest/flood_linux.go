package dataplanetest

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// floodStories are about the first packets of flows that meet a commit. They fail on nftables if
// one of these parts is removed from nftables/internal/form/program_balance.go:
//
//   - the chains that a packet passes again if it found no endpoint in its class. Without these
//     chains, 1 of 1,549,045 flows was refused in 10,000 commits with 40 draws in one pass, and 2
//     of 100 flows with four draws
//   - the second check of the source ranges, after the frontend was found. Without it, 39 of
//     1,162,748 packets from forbidden sources were translated
var floodStories = []story{
	{"no new flow is refused while its service changes size", resized},
	{"no new flow is refused while its service changes policy and affinity", reconfigured},
	{"no forbidden source gets in while a service comes and goes", guarded},
}

// The minimum numbers of flows and of commits in a long flood.
const (
	floodFlows   = 100_000
	floodCommits = 10_000
)

// floodTime is the variable that sets the minimum duration of a flood, such as "5m". It also makes
// the flood long: the flood continues until it has had floodFlows flows and floodCommits commits.
// Without the variable, a flood is short.
//
// nftables needs some 10 seconds for floodCommits. iptables makes 30 to 60 commits a second,
// because the kernel waits for a grace period if a transaction has rules of xtables and the
// previous transaction deleted such rules (nft_compat_wait_for_destructors in
// net/netfilter/nft_compat.c). ipvs itself waits for grace periods: an emulated machine makes two
// commits a second, so only the short flood is useful there.
const floodTime = "KERNLB_TEST_FLOOD"

// flood is the outcome of a flood.
type flood struct {
	*floodSender
	sent, commits                atomic.Int64
	begun, translated, forbidden int
}

// unsettled hides that a backend is a [backends.Settler], so that no commit waits for later work.
type unsettled struct{ backends.Backend }

func (unsettled) Unwrap() backends.Backend { return nil }

// settleEach is the number of commits after which a flood does the work that the commits left.
const settleEach = 32

// flood applies states, one after the other, while packets of new flows of TCP and UDP go to
// addresses, from the node itself and from outside, over IPv4 and IPv6.
func (w *world) flood(t *testing.T, from []floodSource, to []target,
	next func(n int, rng *rand.Rand) servicemodel.State) *flood {
	t.Helper()
	seed := uint64(fromEnv(t, "KERNLB_RANDOM_SEED", int(rand.Uint32()), strconv.Atoi))
	t.Logf("KERNLB_RANDOM_SEED=%d", seed)
	w.engine = dataplane.New(unsettled{w.backend}, &dataplane.Config{Strict: true})
	rng := rand.New(rand.NewPCG(seed, 2))
	w.apply(t, next(0, rng))
	f := &flood{floodSender: w.floodSender(t, seed, from, to)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var sender sync.WaitGroup
	sender.Go(func() {
		for ; ctx.Err() == nil; f.sent.Add(1) {
			f.send()
		}
	})

	settler, _ := w.backend.(backends.Settler)
	least := fromEnv(t, floodTime, 2*time.Second, time.ParseDuration)
	long := os.Getenv(floodTime) != ""
	few := func() bool { return f.sent.Load() < floodFlows || f.commits.Load() < floodCommits }
	for end := time.Now().Add(least); time.Now().Before(end) || long && few(); {
		n := int(f.commits.Add(1))
		w.apply(t, next(n, rng))
		if settler != nil && n%settleEach == 0 {
			ok(settler.Settle(ctx))(t)
		}
	}

	cancel()
	sender.Wait()
	time.Sleep(50 * time.Millisecond) // until packets in the queues of links arrive
	f.begun, f.translated = w.counted(t, "begun"), w.counted(t, "translated")
	f.forbidden = w.counted(t, "forbidden")
	t.Logf("%d commits, %d new flows: %d translated, %d that are forbidden", f.commits.Load(),
		f.begun, f.translated, f.forbidden)
	if astray := w.counted(t, "astray"); astray > 0 {
		t.Errorf("%d packets went to endpoints that were never wanted", astray)
	}
	return f
}

// requireTranslated requires that every packet was translated.
func (f *flood) requireTranslated(t *testing.T) {
	t.Helper()
	if f.translated != f.begun || f.begun == 0 {
		t.Errorf("%d of %d new flows were not translated, with %d commits", f.begun-f.translated,
			f.begun, f.commits.Load())
	}
}

// floodPool are n endpoints of a flood, numbered from first, on this node and elsewhere. Nothing
// runs there, because no packet of a flood gets so far.
func floodPool(first, n int) (l []servicemodel.Endpoint) {
	for i := range n {
		for _, e := range eps("pod2") {
			e.Node = "this"
			if i%2 == 1 {
				e.Node = "other"
			}
			a := e.Addr.AsSlice() // 10.244.9.1 and fd00:10:244:9::1, and so on
			if a[len(a)-1] = byte(first + i); len(a) == 4 {
				a[2] = 9
			} else {
				a[7] = 9
			}

			e.Addr, _ = netip.AddrFromSlice(a)
			l = append(l, e)
		}
	}

	return l
}

// floodTargets are the addresses of floodService.
var floodTargets = []target{cluster, loadBalancer, nodePorts}

// floodService is the service of a flood. It has few frontends, so that commits are short.
func floodService(edit ...func(*servicemodel.Service)) *servicemodel.Service {
	return web(append([]func(*servicemodel.Service){func(s *servicemodel.Service) {
		s.ExternalIPs, s.Ports = nil, s.Ports[:2]
	}}, edit...)...)
}

// beside is a state with services of 1 to 60 endpoints.
func beside() servicemodel.State {
	s := servicemodel.State{}.WithNode(thisNode())
	for n := range 60 {
		i := strconv.Itoa(n)
		svc := floodService(named("beside-"+i, pair("10.96.1."+i, "fd00:10:96::1:"+i)))
		s = and(s, svc, floodPool(180, n+1))
	}

	return s
}

// resized makes pools grow and shrink between all classes of up to 40 endpoints, and to 140, for
// which nftables has further classes.
func resized(t *testing.T, w *world) {
	s := beside()
	sizes := []int{1, 2, 3, 8, 9, 33, 40, 140}
	f := w.flood(t, []floodSource{floodAllowed}, floodTargets,
		func(_ int, rng *rand.Rand) servicemodel.State {
			return and(s, floodService(), floodPool(1, sizes[rng.IntN(len(sizes))]))
		})
	f.requireTranslated(t)
}

// reconfigured changes the policies and the affinity of a service.
func reconfigured(t *testing.T, w *world) {
	s, local := beside(), []func(*servicemodel.Service){externalLocal, internalLocal,
		func(*servicemodel.Service) {}, sticky(time.Hour)}
	sizes := []int{3, 5, 9, 140, 4}
	f := w.flood(t, []floodSource{floodAllowed}, floodTargets,
		func(n int, _ *rand.Rand) servicemodel.State {
			return and(s, floodService(local[n%3], local[2+n/60%2]),
				floodPool(1, sizes[n%len(sizes)]))
		})
	f.requireTranslated(t)
}

// guarded adds and removes a service that forbids some sources of the flood.
func guarded(t *testing.T, w *world) {
	s, ranges := beside(), sourceRanges(floodAllowed[0].String(), floodAllowed[1].String())
	f := w.flood(t, []floodSource{floodAllowed, floodForbidden}, []target{loadBalancer},
		func(n int, _ *rand.Rand) servicemodel.State {
			if n%2 == 1 {
				return s
			}
			return and(s, floodService(ranges), floodPool(1, 1+n%5))
		})
	if f.forbidden > 0 || f.begun == 0 {
		t.Errorf("%d of %d packets were translated and from forbidden sources, with %d commits",
			f.forbidden, f.begun, f.commits.Load())
	}
}
