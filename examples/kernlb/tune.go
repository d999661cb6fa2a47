package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/tuning"
)

func tuneFlags(o *options, fs *flag.FlagSet) {
	o.flow.tuning = tuning.KubeProxy()
	t := &o.flow.tuning
	fs.IntVar(&t.MaxPerCore, "conntrack-max-per-core", t.MaxPerCore,
		"flows that the table should hold for each CPU; 0 leaves its size alone")
	fs.IntVar(&t.Min, "conntrack-min", t.Min, "flows that it should hold at least")
	fs.DurationVar(&t.TCPEstablished, "conntrack-tcp-timeout-established", t.TCPEstablished,
		"how long idle TCP connections are remembered; 0 leaves it")
	fs.DurationVar(&t.TCPCloseWait, "conntrack-tcp-timeout-close-wait", t.TCPCloseWait,
		"the same for those that only the server closed")
	fs.DurationVar(&t.UDP, "conntrack-udp-timeout", 0,
		"how long UDP flows are remembered; 0 leaves it")
	fs.DurationVar(&t.UDPStream, "conntrack-udp-timeout-stream", 0,
		"the same for those that are answered; 0 leaves it")
	fs.BoolVar(&t.TCPBeLiberal, "conntrack-tcp-be-liberal", false,
		"let TCP packets outside the window pass")
	fs.BoolVar(&t.Lower, "lower", false, "lower what is higher, too")
}

// tune sets the limits and timeouts of conntrack, with kube-proxy's flags and defaults.
func (p *program) tune(ctx context.Context) error {
	table, err := conntrack.Open(nil)
	if err != nil {
		return err
	}
	defer table.Close()
	plan, err := tuning.NewPlan(ctx, table, &p.opts.flow.tuning)
	if errors.Is(err, tuning.ErrBadConfig) {
		return fmt.Errorf("%w: %w", errInvalid, err)
	} else if err != nil {
		return err
	}

	// Without settings, the JSON is an empty list.
	err = p.print(append(tuning.Plan{}, plan...), plan.String()+"\n")
	if err != nil || p.opts.planOnly {
		return err
	}
	return plan.Apply(table)
}
