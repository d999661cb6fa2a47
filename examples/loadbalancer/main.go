// Loadbalancer is an L4 load balancer for one host: virtual addresses and their backends come from
// a file, backends are checked, and the kernel balances among those that answer. It is what the
// LVS half of keepalived is for, on nftables, iptables or IPVS.
//
//	loadbalancer -config loadbalancer.yaml [-backend nftables|iptables|ipvs] [-listen ADDRESS]
//	loadbalancer -config loadbalancer.yaml -check
//	loadbalancer -cleanup [-backend …]
//	loadbalancer convert keepalived.conf
//
// SIGHUP makes it read the file again; a broken one is reported, and the old one stays. When the
// program stops or is killed, the kernel goes on; started again, it takes over what is there.
//
// # How it works
//
// Package config reads the file, package check says which backends answer, and the balancer makes
// states of both, which an engine has the kernel hold. Nothing is kept elsewhere: what was in use
// before a start, the kernel says, and what is known before a reload, the checks. A verdict that
// changes makes only the services anew that use the backend. A new file is first planned: if the
// kernel mechanism cannot have a service of it, it is refused as a whole, with the service's line.
//
// A backend that fails, is drained or leaves the file is one that is not ready, quiesced or gone in
// the model; what becomes of its connections is the service's policy, which the keeper of flows
// carries out. A sorry server is an endpoint that is there while no other is.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/flows"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/examples/loadbalancer/config"
	"github.com/kernlb/kernlb/examples/loadbalancer/keepalived"
)

// options are the flags.
type options struct {
	config, backend, listen string
	check, cleanup          bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		err = nil
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "loadbalancer:", err)
		os.Exit(1)
	}
}

// command does what the command line says.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "convert" {
		return convert(args[1:], stdout, stderr)
	}
	var o options
	f := flag.NewFlagSet("loadbalancer", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.config, "config", "loadbalancer.yaml", "what to balance, a `file`")
	f.StringVar(&o.backend, "backend", "nftables", "nftables, iptables or ipvs")
	f.StringVar(&o.listen, "listen", "127.0.0.1:9095",
		"`address` of /metrics, /backends, /healthz and the page; empty: none")
	f.BoolVar(&o.check, "check", false, "say whether the file is right, and end")
	f.BoolVar(&o.cleanup, "cleanup", false, "remove all that the program has in the kernel")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("there is no command %q", f.Arg(0))
	}
	if o.check {
		_, err := config.Load(o.config)
		return err
	}
	return run(ctx, o, slog.New(slog.NewTextHandler(stderr, nil)))
}

// convert prints the file that a configuration of keepalived means.
func convert(args []string, stdout, stderr io.Writer) error {
	if len(args) != 1 {
		return errors.New("convert: want the name of one configuration of keepalived")
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	out, warnings, err := keepalived.Convert(args[0], string(text))
	for _, w := range warnings {
		fmt.Fprintln(stderr, "warning:", w)
	}
	if err == nil {
		_, err = stdout.Write(out)
	}
	return err
}

// run balances until the context ends.
func run(ctx context.Context, o options, log *slog.Logger) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	file, err := config.Load(o.config)
	if err != nil && !o.cleanup {
		return err
	}
	backend, err := openBackend(o.backend)
	if err != nil {
		return err
	}
	defer backend.Close()
	table, err := conntrack.Open(nil)
	if err != nil {
		return err
	}
	defer table.Close()
	keeper, err := flows.New(table, &flows.Config{Logger: log})
	if err != nil {
		return err
	}
	engine := dataplane.New(backend, &dataplane.Config{Logger: log, Flows: keeper})
	if o.cleanup {
		_, err := engine.Cleanup(ctx)
		return errors.Join(err, syncDevices(nil))
	}
	b := newBalancer(engine, log)
	defer b.close()
	if err := b.start(ctx, file); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return engine.Run(ctx, nil) })
	g.Go(func() error { return serve(ctx, o.listen, b.handler(keeper, table)) })
	g.Go(func() error { return b.follow(ctx, o.config, hangup) })
	if err := g.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil // it was asked to stop
}

// deviceInterval is how often addresses on devices are compared with those that are wanted.
const deviceInterval = 2 * time.Second

// follow reads the file again when it is told to, and keeps addresses on devices, until the
// context ends.
func (b *balancer) follow(ctx context.Context, file string, hangup <-chan os.Signal) error {
	tick := time.NewTicker(deviceInterval)
	defer tick.Stop()
	for {
		b.bindAddresses(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-hangup:
			b.reload(ctx, file)
		}
	}
}
