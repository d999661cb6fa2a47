// Userspace is a proxy for the services of Kubernetes manifests that needs neither a kernel
// mechanism nor privileges. It follows the files: a changed service takes effect at once, and
// connections of other services are not affected. README.md explains its use, and package proxy its
// design.
//
//	userspace -f web.yaml -map 10.96.0.10:80=127.0.0.1:8080
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

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/examples/command/version"
	"github.com/kernlb/kernlb/examples/userspace/proxy"
	"github.com/kernlb/kernlb/servicemodel"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if version.Asked(os.Args[1:]) {
		fmt.Println(version.Of("userspace"))
		return
	}

	o, err := parse(os.Args[1:], os.Stdout)
	if err == nil {
		err = run(ctx, stop, o)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "userspace: %v\n", err)
		os.Exit(1)
	}
}

// run serves until the context ends. Then stop lets the next signal end the program, while
// connections drain.
func run(ctx context.Context, stop func(), o *options) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	follower := &follower{options: o, log: log}
	if _, err := follower.read(); err != nil {
		return err
	}
	o.proxy.Logger = log
	backend, err := proxy.New(&o.proxy)
	if err != nil {
		return err
	}
	defer backend.Close()
	keeper, err := flows.New(backend, &flows.Config{Connections: o.connections, Logger: log})
	if err != nil {
		return err
	}
	engine := dataplane.New(backend, &dataplane.Config{Flows: keeper})
	ports := health.NewNodePorts(nil) // for load balancers in front of this host
	defer engine.Subscribe(func(_ context.Context, ev dataplane.Event) { follower.tell(ev) })()
	defer ports.Follow(engine, func(err error) {
		log.Error("health check node ports", "error", err)
	})()
	engine.Set(follower.state())

	// Load balancers must learn at once that this host stops.
	if err := errors.Join(serve(ctx, engine, follower), ports.Close()); err != nil {
		return err
	}
	stop()
	backend.Retire()
	log.Info("stopped listening", "open", backend.Stats().Open, "drain", o.drain)
	ctx, cancel := context.WithTimeout(context.Background(), o.drain)
	defer cancel()
	if err := backend.Drain(ctx); err != nil {
		log.Warn("reset what is open", "reason", err)
	}
	return nil
}

// serve runs the engine and follows the files. It returns nil when the context ends.
func serve(ctx context.Context, engine *dataplane.Engine, f *follower) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- engine.Run(ctx, nil) }()
	tick := time.NewTicker(f.options.interval)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		case <-tick.C:
			changed, err := f.read()
			if err != nil {
				f.log.Error("broken manifest: all services stay as they were", "error", err)
			}

			// A service may have been refused because its port was taken. Try it again.
			if changed || len(engine.Status().Refused) > 0 {
				engine.Set(f.state())
			}
		}
	}
}

// options are the values of the flags.
type options struct {
	paths       []string
	node        string
	annotations string
	connections servicemodel.ConnectionPolicy
	interval    time.Duration
	drain       time.Duration
	proxy       proxy.Config
}

// parse parses the flags. Errors name the flag. If the user asks for help, parse writes it and
// returns [flag.ErrHelp].
func parse(args []string, help io.Writer) (*options, error) {
	headers := map[string]bool{} // services, or "all"
	o := &options{}
	o.proxy.Header = func(n servicemodel.Name) bool { return headers["all"] || headers[n.String()] }
	f := flag.NewFlagSet("userspace", flag.ContinueOnError)
	f.SetOutput(io.Discard) // the returned error is enough
	f.Func("f", "manifest, or directory of manifests (.yaml, .yml, .json); may be repeated",
		func(s string) error { o.paths = append(o.paths, s); return nil })
	f.Func("map", "where an address of a service or endpoint is on this host, such as "+
		"10.96.0.10:80=127.0.0.1:8080, 10.244.0.0/16=127.0.0.1 or 10.96.0.0/12=none; may be "+
		"repeated, the first that fits counts", func(s string) error {
		r, err := proxy.ParseRule(s)
		o.proxy.Map = append(o.proxy.Map, r)
		return err
	})

	f.Func("proxy-protocol", "service whose endpoints are sent a header of the PROXY protocol, "+
		"version 2, such as default/web, or all; may be repeated",
		func(s string) error { headers[s] = true; return nil })
	f.Func("connections", "how to treat connections to removed endpoints: leave, cut, or how "+
		"long they are drained, such as 30s (default leave)", func(s string) (err error) {
		o.connections, err = servicemodel.ParseConnectionPolicy(s)
		return err
	})

	f.StringVar(&o.node, "node", "", "name of this node, for traffic policy Local and hints")
	f.StringVar(&o.annotations, "annotations", "kernlb.io", "prefix of annotations that say "+
		"schedulers, weights and policies for connections")
	f.DurationVar(&o.interval, "interval", time.Second, "time between two looks at the files")
	f.DurationVar(&o.drain, "drain", 10*time.Second, "how long connections may go on at the end")
	c := &o.proxy
	f.DurationVar(&c.ConnectTimeout, "connect-timeout", proxy.DefaultConnectTimeout,
		"how long an endpoint may take to accept a connection, until another is asked")
	f.DurationVar(&c.IdleTimeout, "idle-timeout", proxy.DefaultIdleTimeout,
		"after what silence a connection is reset")
	f.DurationVar(&c.UDPTimeout, "udp-timeout", proxy.DefaultUDPTimeout,
		"after what silence a UDP flow is forgotten; a quarter of it until it was answered twice")
	f.IntVar(&c.MaxConnections, "max-connections", proxy.DefaultMaxConnections,
		"TCP connections at a time; others wait")
	f.IntVar(&c.MaxFlows, "max-flows", proxy.DefaultMaxFlows, "UDP flows at a time; "+
		"a new one ends one of the service that has most")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(help, "usage: userspace -f FILE [flags]\n       userspace version\n\n"+
				"example:\n  userspace -f web.yaml -map 10.96.0.10:80=127.0.0.1:8080\n\nflags:\n")
			f.SetOutput(help)
			f.PrintDefaults()
		}

		return nil, err
	}

	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("%q is no flag: give manifests with -f", f.Arg(0))
	case len(o.paths) == 0:
		return nil, errors.New("give manifests with -f")
	case o.interval <= 0:
		return nil, fmt.Errorf("-interval: %v: must be positive", o.interval)
	case o.drain < 0:
		return nil, fmt.Errorf("-drain: %v: must not be negative", o.drain)
	}

	return o, nil
}
