package dataplanetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/test/busywriter"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/servicemodel"
)

// figure is a number of a reading.
type figure struct {
	name string
	// part and more limit the growth of the figure from the first third of the readings to the
	// last: it may grow by this fraction, plus this amount.
	part, more float64
}

var figures = []figure{
	{"heap MB", 0.2, 1}, {"RSS MB", 0.2, 10}, {"goroutines", 0, 1}, {"descriptors", 0, 3},
	// Sets for numbers of slots stay until rules are written for another reason, so their number
	// varies. The tool iptables makes tables when it lists them.
	{"tables", 0, 2}, {"chains", 0.2, 0}, {"rules", 0.2, 0}, {"sets", 0.2, 0},
	// The version of an instance of nftables has 1 to 127 elements.
	{"elements", 0, 127},
	{"servers", 0, 0}, {"destinations", 0, 0}, {"policies", 0, 0},
}

// A soak takes the following number of readings. In the pauses between readings, every two seconds
// another program disturbs the engine.
const (
	readings     = 40
	disturbEvery = 2 * time.Second
)

// Endures changes services without pause. At the same time, a neighbour commits, programs apply
// some of the states and are killed, an administrator flushes, and there are open connections and
// streams of datagrams. Nothing may grow: neither memory, goroutines and descriptors of the process
// nor objects in the kernel. KERNLB_TEST_SOAK sets the duration, such as "1h"; without it, the test
// is skipped. The test must do nothing before it calls Endures.
func Endures(t *testing.T, under Backend, states []servicemodel.State) {
	applyIfKilled(under, states)
	lasts := fromEnv(t, "KERNLB_TEST_SOAK", 0, time.ParseDuration)
	if lasts == 0 {
		t.Skip("takes long: set KERNLB_TEST_SOAK, such as 1h")
	}
	w, base := under.busy(t, 200)
	s := &soak{world: w, base: base, states: states}
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	defer w.engine.Subscribe(s.logFailures(ctx))()
	connections := w.watched(t, 50, time.Second)
	datagrams := streams{w.toWeb(t, 0), w.toWeb(t, 1)}
	datagrams.start()
	var disturbing sync.WaitGroup
	disturbing.Go(func() { s.disturb(ctx, t) })
	changes := s.change(ctx, t, lasts/readings)
	disturbing.Wait()
	datagrams.stop()
	totals := w.engine.Status().Totals
	t.Logf("%d changes, %d disturbances; %d applies, %d failed, %d repairs; %d connections broke; "+
		"datagrams: %v", changes, s.disturbances, totals.Applies, totals.Failures, totals.Repairs,
		connections().Lost(), datagrams.tallies())
	s.requireNoGrowth(t)
}

// busy builds a network with a neighbour, and runs an engine that has a keeper of flows. Its state
// has a service that answers, and further services of ten endpoints.
func (b *Backend) busy(t *testing.T, services int) (*world, servicemodel.State) {
	t.Helper()
	w := b.network(t)
	w.keepFlows(t, servicemodel.ConnectionPolicy{})
	s := and(manyServices(services, 10, 0), web(), eps("pod2", "remote1"))
	for svc := range s.Services() {
		svc.SessionAffinity.ClientIP = svc.Ports[0].Port%10 == 1
		s = s.WithService(svc)
	}

	RunEngine(t, w.engine, s)
	w.apply(t, s)
	return w, s
}

// toWeb opens a stream to the service web.
func (w *world) toWeb(t *testing.T, family int) *stream {
	return w.stream(t, "outside1", streamPort, netip.AddrPortFrom(clusterIP[family], servicePort))
}

// soak is a run of Endures.
type soak struct {
	*world
	base     servicemodel.State
	states   []servicemodel.State
	readings []map[string]float64

	// quiet is held by a program that disturbs the engine, and by a reading: otherwise the reading
	// would count the objects of that program.
	quiet        sync.Mutex
	disturbances int
}

// logFailures prints failures that can explain the result: errors, except those at the end of the
// soak, and conflicts, except the first of an apply.
func (s *soak) logFailures(ctx context.Context) func(context.Context, dataplane.Event) {
	return func(_ context.Context, ev dataplane.Event) {
		now := time.Now().Format(time.TimeOnly)
		switch ev := ev.(type) {
		case dataplane.Failed:
			if ctx.Err() == nil {
				fmt.Printf("%s %s failed, %v, %v: %v\n", now, ev.Doing, ev.Phase, ev.Phases, ev.Err)
			}
		case dataplane.WriteConflict:
			if ev.Try > 1 {
				fmt.Printf("%s %s, try %d: %v\n", now, ev.Doing, ev.Try, ev.Err)
			}
		case dataplane.WatchFailed:
			fmt.Printf("%s %v\n", now, ev.Err)
		}
	}
}

// change applies one random change after the other until ctx ends. Once in each interval, it takes
// a reading.
func (s *soak) change(ctx context.Context, t *testing.T, interval time.Duration) (n int) {
	neighbour := ok(busywriter.Start(t.Context(), s.Node.NS.NetNS()))(t)
	r := &random{w: s.world, t: t, rng: rand.New(rand.NewPCG(1, 2))}
	c := r.config()
	c.Nodes = nil
	g, state := randstate.New(c, r.rng), s.base
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ; ctx.Err() == nil; n++ {
		state = g.Change(state)
		select {
		case <-tick.C:
			state = s.base
			s.quiet.Lock()

			// nft begins a listing again after each foreign commit
			ok(neighbour.Close())(t)
			s.read(t)
			neighbour = ok(busywriter.Start(t.Context(), s.Node.NS.NetNS()))(t)
			s.quiet.Unlock()
			tick.Reset(interval) // a reading takes long on a busy machine
		case <-time.After(time.Millisecond):
			_, err := settled(s.engine.Apply(ctx, state))
			if err != nil && ctx.Err() == nil && !errors.Is(err, kernelerr.ErrConflict) {
				t.Errorf("apply: %v", err)
				return n
			}
		}
	}

	ok(neighbour.Close())(t)
	return n
}

// disturb repeats two things until ctx ends: another program applies states and is killed, and then
// the kernel is damaged, as by a mistake of an administrator.
func (s *soak) disturb(ctx context.Context, t *testing.T) {
	commands := []string{"nft flush ruleset", "conntrack -F", "iptables -F", "iptables -t nat -F",
		"nft delete table ip kernlb", "nft delete table ip6 nat"}
	if s.under.OwnConnections {
		commands = append(commands, "ipvsadm -C", "ip rule del pref 107",
			"nft delete table ip kernlb-ipvs")
	}

	for _, command := range commands {
		if _, err := exec.LookPath(strings.Fields(command)[0]); err != nil {
			t.Error(err)
		}
	}

	rng := rand.New(rand.NewPCG(3, 4))
	for ; ; s.disturbances++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(disturbEvery):
		}

		s.quiet.Lock()
		writer, report, err := startKilled(t, s.Node.NS, rng.IntN(len(s.states)))
		if err == nil {
			time.Sleep(time.Duration(rng.ExpFloat64() * float64(300*time.Millisecond)))

			// A command may fail because its table does not exist.
			_, _ = runIn(ctx, s.Node.NS, nil,
				strings.Fields(commands[s.disturbances%len(commands)])...)
			err = errors.Join(kill(writer), report.Close())
		}

		s.quiet.Unlock()
		if err != nil {
			t.Errorf("a writer: %v", err)
			return
		}
	}
}

// read takes a reading, with the services from the beginning of the soak.
func (s *soak) read(t *testing.T) {
	s.engine.Resync()
	s.apply(t, s.base)
	r := map[string]float64{}
	s.countObjects(t, r)
	if s.under.OwnConnections {
		servers := s.printed(t, "ipvsadm -Sn")
		r["servers"] = float64(bytes.Count(servers, []byte("-A ")))
		r["destinations"] = float64(bytes.Count(servers, []byte("-a ")))
	}

	r["policies"] = float64(bytes.Count(append(s.printed(t, "ip -4 rule"),
		s.printed(t, "ip -6 rule")...), []byte("\n")))
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	r["heap MB"] = float64(mem.HeapAlloc) / (1 << 20)
	pages := ok(os.ReadFile("/proc/self/statm"))(t)
	var size, resident float64
	ok(fmt.Sscan(string(pages), &size, &resident))(t)
	r["RSS MB"] = resident * float64(os.Getpagesize()) / (1 << 20)
	stacks := make([]byte, 8<<20)
	for stack := range bytes.SplitSeq(stacks[:runtime.Stack(stacks, true)], []byte("\n\n")) {
		if !bytes.Contains(stack, []byte("/netnstest.")) { // not those of the traffic
			r["goroutines"]++
		}
	}

	r["descriptors"] = float64(descriptors(t))
	if len(s.readings) == 0 {
		for _, f := range figures {
			fmt.Printf(" %12s", f.name)
		}
		fmt.Println()
	}

	for _, f := range figures {
		fmt.Printf(" %12.1f", r[f.name])
	}
	fmt.Println()
	s.readings = append(s.readings, r)
}

// printed is the output of a program in the node.
func (s *soak) printed(t *testing.T, command string) []byte {
	t.Helper()
	out := ok(runIn(t.Context(), s.Node.NS, nil, strings.Fields(command)...))(t)
	return out
}

// countObjects counts the objects of nf_tables.
func (s *soak) countObjects(t *testing.T, r map[string]float64) {
	t.Helper()
	var ruleset struct {
		Nftables []map[string]struct{ Elem []json.RawMessage }
	}
	must(t, json.Unmarshal(s.printed(t, "nft -j list ruleset"), &ruleset))
	for _, object := range ruleset.Nftables {
		for kind, o := range object {
			if kind == "map" {
				kind = "set"
			}
			r[kind+"s"]++
			r["elements"] += float64(len(o.Elem))
		}
	}
}

// descriptors counts the open descriptors, except the descriptors of the traffic: their number
// changes when connections break.
func descriptors(t *testing.T) (n int) {
	t.Helper()
	files := ok(os.ReadDir("/proc/self/fd"))(t)
	for _, f := range files {
		var fd int
		ok(fmt.Sscan(f.Name(), &fd))(t)
		domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil || domain == unix.AF_NETLINK {
			n++
		}
	}

	return n
}

// requireNoGrowth compares the greatest figures of the first third of the readings and of the last
// third. A median would depend on the number of flushes, because a flush leaves fewer objects for a
// while. The very first reading does not count, because buffers are still unused then.
func (s *soak) requireNoGrowth(t *testing.T) {
	t.Helper()
	if len(s.readings) < 7 {
		t.Fatalf("%d readings are too few to tell", len(s.readings))
	}
	l := s.readings[1:]
	third := len(l) / 3
	greatest := func(l []map[string]float64, name string) (value float64) {
		for _, r := range l {
			value = max(value, r[name])
		}
		return value
	}

	for _, f := range figures {
		first, last := greatest(l[:third], f.name), greatest(l[len(l)-third:], f.name)
		if last > first*(1+f.part)+f.more {
			t.Errorf("%s: %.1f in the first third, %.1f in the last", f.name, first, last)
		}
	}
}

// rollingRate is the number of endpoints that Rolls replaces in a second.
const rollingRate = 1000

// Rolls replaces endpoints of many services, one at a time, while a neighbour commits. It measures
// the time from each change until the kernel has it. Connections and datagrams to another service
// must not be disturbed. KERNLB_TEST_ROLLS sets the duration, such as "1m"; without it, the test is
// skipped.
func Rolls(t *testing.T, under Backend) {
	lasts := fromEnv(t, "KERNLB_TEST_ROLLS", 0, time.ParseDuration)
	if lasts == 0 {
		t.Skip("takes long: set KERNLB_TEST_ROLLS, such as 1m")
	}
	w, s := under.busy(t, 1000)
	neighbour := ok(busywriter.Start(t.Context(), w.Node.NS.NetNS()))(t)
	var waits sync.WaitGroup
	var mu sync.Mutex
	var took []time.Duration // from a change until the kernel has it
	connections, udp := w.watched(t, 1250, 5*time.Second), streams{w.toWeb(t, 0), w.toWeb(t, 1)}
	udp.start()
	before, start := w.engine.Status().Totals.Applies, time.Now()
	services, changes := s.Len()-1, 0
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for time.Since(start) < lasts {
		<-tick.C
		for due := int(time.Since(start).Seconds() * rollingRate); changes < due; changes++ {
			name := manyName(changes % services)
			eps := slices.Clone(s.Endpoints(name))
			eps[changes/services%len(eps)] = nowhere(1<<20 + changes)
			s = s.WithEndpoints(name, eps)
			asked, rev := time.Now(), w.engine.Set(s)
			waits.Go(func() {
				if err := w.engine.Wait(t.Context(), rev); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				took = append(took, time.Since(asked))
			})
		}
	}

	waits.Wait()
	ok(neighbour.Close())(t)
	seconds, totals := time.Since(start).Seconds(), w.engine.Status().Totals
	udp.stop()
	report := connections()
	t.Logf("%d endpoints replaced in %.1f s, %.0f a second, in %d applies", changes, seconds,
		float64(changes)/seconds, totals.Applies-before)
	slices.Sort(took)
	at := func(p float64) time.Duration {
		return took[int(p*float64(len(took)-1))].Round(time.Microsecond)
	}
	t.Logf("from change to kernel: p50 %v, p99 %v, max %v, of %d changes; datagrams: %v", at(.5),
		at(.99), at(1), len(took), udp.tallies())
	if totals.Failures > 0 {
		t.Errorf("%d applies failed: %v", totals.Failures, w.engine.Status().Err)
	}
	if y := udp.tallies(); report.Lost()+y[0].lost+y[1].lost > 0 {
		t.Errorf("a service that nobody changed was disturbed: connections %+v", report)
	}
}
