// Endure tests that a backend lasts. It runs in a network of namespaces of its own:
//
//	endure soak     changes without pause, beside a neighbour, a second writer that is killed, and
//	                an administrator who flushes; fails if anything grows (make soak)
//	endure rolling  replaces 1,000 endpoints a second beside a neighbour, under open connections
//	                and a stream of datagrams to a service that does not change (make rolling)
//
// On ipvs, both run in a virtual machine, as a test (make soak-vm).
//
// Everything runs in one process, except the writers that are killed. So the memory of the process
// is the memory of the engine and of the traffic. Goroutines and descriptors of the traffic are not
// counted, because their number changes when connections break.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
)

// options are the flags.
type options struct {
	backend  string
	duration time.Duration
	interval time.Duration
	conns    int
	rate     int
	services int
	affinity int
}

// writerFD is the network namespace in a writer that is to be killed.
const writerFD = 3

func main() {
	var o options
	o.register(flag.CommandLine)
	flag.Parse()
	run := commands[flag.Arg(0)]
	if run == nil || flag.NArg() > 1 {
		fmt.Fprintln(os.Stderr, "usage: endure [flags] soak|rolling")
		flag.PrintDefaults()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, &o); err != nil {
		fmt.Fprintln(os.Stderr, "endure:", err)
		os.Exit(1)
	}
}

var commands = map[string]func(context.Context, *options) error{"soak": soak, "rolling": rolling,
	"writer": writer}

// register makes the flags.
func (o *options) register(f *flag.FlagSet) {
	f.StringVar(&o.backend, "backend", nftables.Name, "`NAME`: nftables, iptables or ipvs")
	f.DurationVar(&o.duration, "duration", time.Hour, "how long")
	f.DurationVar(&o.interval, "interval", 0,
		"soak: time between two readings (default: a fortieth of the duration)")
	f.IntVar(&o.conns, "conns", 5000, "rolling: open TCP connections")
	f.IntVar(&o.rate, "rate", 1000, "rolling: endpoints replaced in a second")
	f.IntVar(&o.services, "services", 1000, "services of ten endpoints beside those in use")
	f.IntVar(&o.affinity, "affinity", 10, "every so many of them has session affinity, 0: none")
}

// open opens the backend.
func (o *options) open(netns int) (dataplane.Backend, error) {
	switch o.backend {
	case nftables.Name:
		return nftables.New(&nftables.Config{NetNS: netns})
	case iptables.Name:
		return iptables.New(&iptables.Config{NetNS: netns})
	case ipvs.Name:
		return ipvs.New(&ipvs.Config{NetNS: netns})
	}
	return nil, errors.New("-backend: want nftables, iptables or ipvs")
}
