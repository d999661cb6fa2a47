package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

const (
	soakConns   = 200
	vandalEvery = 3 * time.Second
	writerEvery = 2 * time.Second
	writerLives = 300 * time.Millisecond // on average
)

// soaking is a soak under way.
type soaking struct {
	*rig
	o *options

	turn sync.Mutex // its holder changes the engine's state
	// others is a lock. Programs that disturb the engine hold it for reading, and the measurement
	// holds it for writing, because on a busy machine a reading takes longer than the pauses of
	// vandals and writers.
	others   sync.RWMutex
	changes  atomic.Int64
	vandals  atomic.Int64
	kills    atomic.Int64
	readings []reading
}

// soak changes services without pause, while other programs disturb the engine, and measures.
func soak(ctx context.Context, o *options) error {
	r, err := newRig(ctx, o, soakConns)
	if err != nil {
		return err
	}
	defer r.close() //nolint:errcheck // the network goes with the process
	s := &soaking{rig: r, o: o}
	defer r.engine.Subscribe(logFailures)()
	ctx, cancel := context.WithTimeout(ctx, o.duration)
	defer cancel()
	udp, watched := r.stream(ctx, 10*time.Millisecond), r.watch(ctx, time.Second)
	fresh := r.ask(ctx, netnstest.Probe{From: s.Outside[1], Proto: servicemodel.TCP},
		20*time.Millisecond)
	errs := make(chan error, 3)
	for _, work := range []func(context.Context) error{s.change, s.vandalize, s.write} {
		go func() { errs <- work(ctx) }()
	}
	measured := s.measure(ctx)
	cancel()
	for range cap(errs) {
		measured = errors.Join(measured, <-errs)
	}
	udp.work.Wait()
	fresh.work.Wait()
	t := r.engine.Status().Totals
	fmt.Printf("%s: %d changes, %d vandals, %d writers killed; %d applies, %d failed, %d repairs\n",
		o.backend, s.changes.Load(), s.vandals.Load(), s.kills.Load(), t.Applies, t.Failures,
		t.Repairs)
	fmt.Printf("clients: %d of %d connections broke, %d of %d datagrams were lost, "+
		"%d of %d new connections failed\n", watched().Lost(), soakConns, udp.lost, udp.sent,
		fresh.lost, fresh.sent)
	return errors.Join(measured, grown(s.readings))
}

// logFailures prints failures that can explain the result: errors, except those at the end of the
// soak, and conflicts, except the first of an apply.
func logFailures(ctx context.Context, ev dataplane.Event) {
	if ctx.Err() != nil {
		return
	}
	now := time.Now().Format(time.TimeOnly)
	switch ev := ev.(type) {
	case dataplane.Failed:
		fmt.Printf("%s %s failed, %v, %v: %v\n", now, ev.Doing, ev.Phase, ev.Phases, ev.Err)
	case dataplane.WriteConflict:
		if ev.Try > 1 {
			fmt.Printf("%s %s, try %d: %v\n", now, ev.Doing, ev.Try, ev.Err)
		}
	case dataplane.WatchFailed:
		fmt.Printf("%s %v\n", now, ev.Err)
	}
}

// source makes states that differ in all fields of services.
func source(rng *rand.Rand) *randstate.Source {
	c := randstate.Config{Services: 40, EndpointPorts: []uint16{8080, 8081, 9090}, Weights: true,
		Node: node()}
	for i := range 8 {
		c.Places = append(c.Places, randstate.Place{
			IPv4: netip.AddrFrom4([4]byte{10, 244, 7, byte(i + 1)}),
			IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:10:244:7::%x", i+1)),
			Node: []string{"node-0", "node-1"}[i%2]})
	}
	return randstate.New(c, rng)
}

// change applies one random change after the other, at least 100 a second if the backend is fast
// enough.
func (s *soaking) change(ctx context.Context) error {
	g, state := source(rand.New(rand.NewPCG(1, 2))), s.base
	for ctx.Err() == nil {
		state = g.Change(state)
		if s.changes.Load()%2000 == 0 {
			state = s.base // removes the added endpoints
		}
		s.turn.Lock()
		_, err := s.engine.Apply(ctx, state)
		s.turn.Unlock()
		if err != nil && ctx.Err() == nil && !errors.Is(err, dataplane.ErrConflict) {
			return fmt.Errorf("apply: %w", err)
		}
		s.changes.Add(1)
		time.Sleep(time.Millisecond)
	}
	return nil
}

// vandalize does damage as an administrator may by mistake.
func (s *soaking) vandalize(ctx context.Context) error {
	commands := []string{"nft flush ruleset", "conntrack -F", "iptables -F", "iptables -t nat -F",
		"nft delete table ip kernlb", "nft delete table ip6 nat"}
	if s.o.backend == ipvs.Name {
		commands = append(commands, "ipvsadm -C", "ip rule del pref 107",
			"nft delete table ip "+"kernlb-ipvs")
	}
	tick := time.NewTicker(vandalEvery)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		// A command may fail because its table does not exist.
		s.others.RLock()
		_, _ = s.run(commands[i%len(commands)])
		s.others.RUnlock()
		s.vandals.Add(1)
	}
}

// run runs a command in the node.
func (s *soaking) run(command string) (out []byte, err error) {
	words := strings.Fields(command)
	err = s.Node.NS.Do(func() (err error) {
		out, err = exec.Command(words[0], words[1:]...).Output()
		return err
	})
	return out, err
}

// write starts a program that applies states of its own, and kills it, again and again.
func (s *soaking) write(ctx context.Context) error {
	rng := rand.New(rand.NewPCG(3, 4))
	netns, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", s.Node.NS.Fd()))
	if err != nil {
		return err
	}
	defer netns.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(writerEvery):
		}
		life := time.Duration(rng.ExpFloat64() * float64(writerLives))
		if err := s.writeAndDie(netns, life); err != nil {
			return err
		}
		s.kills.Add(1)
	}
}

// writeAndDie starts a writer in a network namespace, and kills it after its life.
func (s *soaking) writeAndDie(netns *os.File, life time.Duration) error {
	s.others.RLock()
	defer s.others.RUnlock()
	c := exec.Command("/proc/self/exe", "-backend", s.o.backend, "-services",
		fmt.Sprint(s.o.services), "writer")
	c.ExtraFiles, c.Stderr = []*os.File{netns}, os.Stderr
	if err := c.Start(); err != nil {
		return fmt.Errorf("start a writer: %w", err)
	}
	time.Sleep(life)
	if err := c.Process.Kill(); err != nil {
		return fmt.Errorf("kill a writer: %w", err)
	}
	var exit *exec.ExitError
	if err := c.Wait(); !errors.As(err, &exit) ||
		exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		return fmt.Errorf("a writer was not killed: %w", err)
	}
	return nil
}

// writer is the program that is killed.
func writer(ctx context.Context, o *options) error {
	b, err := o.open(writerFD)
	if err != nil {
		return err
	}
	e := dataplane.New(b, nil)
	state := serviceState(o.services, o.affinity)
	g := source(rand.New(rand.NewPCG(uint64(os.Getpid()), 5)))
	for {
		state = g.Change(state)
		if _, err := e.Apply(ctx, state); err != nil && !errors.Is(err, dataplane.ErrConflict) {
			return err
		}
	}
}
