package main

import (
	"errors"
	"flag"
	"fmt"
	"strings"

	"github.com/kernlb/kernlb/conntrack/tuning"
	"github.com/kernlb/kernlb/servicemodel"
)

// flowOptions are the flags about flows.
type flowOptions struct {
	keep        bool
	policy      string
	connections servicemodel.ConnectionPolicy
	watch       bool
	service     string
	bench       int
	tuning      tuning.Config
}

func (o *flowOptions) define(fs *flag.FlagSet) {
	fs.BoolVar(&o.keep, "keep-flows", false, "apply: leave flows alone that the change made stale")
	fs.StringVar(&o.policy, "connections", "leave",
		"apply: what becomes of connections to endpoints that go, `POLICY`: leave, cut, or how "+
			"long they are drained, such as 30s; apply waits for it")
	fs.BoolVar(&o.watch, "watch", false, "flows: print what happens to flows, until interrupted")
	fs.StringVar(&o.service, "service", "", "flows, show and graph: only the service "+
		"`NAMESPACE/NAME`")
	fs.IntVar(&o.bench, "flows", 0, "bench: measure with `N` flows what cleaning them up takes")

	t := tuning.KubeProxy()
	o.tuning = t
	fs.IntVar(&o.tuning.MaxPerCore, "conntrack-max-per-core", t.MaxPerCore,
		"tune: flows that the table should hold for each CPU; 0 leaves its size alone")
	fs.IntVar(&o.tuning.Min, "conntrack-min", t.Min, "tune: flows that it should hold at least")
	fs.DurationVar(&o.tuning.TCPEstablished, "conntrack-tcp-timeout-established", t.TCPEstablished,
		"tune: how long idle TCP connections are remembered; 0 leaves it")
	fs.DurationVar(&o.tuning.TCPCloseWait, "conntrack-tcp-timeout-close-wait", t.TCPCloseWait,
		"tune: the same for those that only the server closed")
	fs.DurationVar(&o.tuning.UDP, "conntrack-udp-timeout", 0,
		"tune: how long UDP flows are remembered; 0 leaves it")
	fs.DurationVar(&o.tuning.UDPStream, "conntrack-udp-timeout-stream", 0,
		"tune: the same for those that are answered; 0 leaves it")
	fs.BoolVar(&o.tuning.TCPBeLiberal, "conntrack-tcp-be-liberal", false,
		"tune: let TCP packets outside the window pass")
	fs.BoolVar(&o.tuning.Lower, "lower", false, "tune: lower what is higher, too")
}

// check checks the flags.
func (o *flowOptions) check() error {
	var errs []error
	var err error
	if o.connections, err = servicemodel.ParseConnectionPolicy(o.policy); err != nil {
		errs = append(errs, fmt.Errorf("-connections: %q: %w", o.policy, err))
	}
	if o.service != "" && strings.Count(o.service, "/") != 1 {
		errs = append(errs, fmt.Errorf("-service: %q: want namespace/name", o.service))
	}
	if o.bench < 0 || o.bench > 1<<22 {
		errs = append(errs, fmt.Errorf("-flows: %d: want 0 to %d", o.bench, 1<<22))
	}
	return errors.Join(errs...)
}
