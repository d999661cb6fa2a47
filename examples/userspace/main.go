// Userspace is a proxy for the services of Kubernetes manifests that needs neither a kernel
// mechanism nor privileges. It follows the files: what changes in them changes at once, and other
// connections do not notice. README.md says how to use it; package proxy, how it works.
//
//	userspace -f web.yaml -map 10.96.0.10:80=127.0.0.1:8080
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/conntrack/flows"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/examples/userspace/proxy"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse(os.Args[1:], os.Stdout)
	if err == nil {
		err = run(ctx, o)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "userspace: %v\n", err)
		os.Exit(1)
	}
}

// run serves until the context ends.
func run(ctx context.Context, o *options) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if o.demo {
		end, err := o.startDemo()
		if err != nil {
			return err
		}
		defer end()
	}
	follower := newFollower(o, log)
	if err := follower.read(); err != nil {
		return err
	}
	o.proxy.Logger = log
	return forward(ctx, o, follower, log)
}

// forward forwards until the context ends, or another process takes over.
func forward(ctx context.Context, o *options, follower *follower, log *slog.Logger) error {
	before := &predecessor{path: o.handover}
	defer before.close()
	var err error
	if o.proxy.Inherited, err = before.sockets(); err != nil {
		return err
	}
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
	defer engine.Subscribe(follower.tell)()
	serving := make(chan struct{})
	begin := sync.OnceFunc(func() { close(serving) })
	defer engine.Subscribe(func(ctx context.Context, ev dataplane.Event) {
		if ev, ok := ev.(dataplane.Applied); ok {
			begin()
			if err := ports.Sync(ctx, ev.Changes.New); err != nil {
				log.Error("health check node ports", "error", err)
			}
		}
	})()
	engine.Set(follower.state())
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var work sync.WaitGroup
	work.Go(func() {
		if succeeded(ctx, serving, before, backend, o, log) {
			log.Info("another process took over")
			stop()
		}
	})
	err = serve(ctx, engine, follower)
	stop()
	work.Wait()
	_ = ports.Close() // load balancers, and a successor, must know now
	if err != nil {
		return err
	}
	finish(backend, o.drain, log)
	return nil
}

// succeeded tells the process before, once this one serves, that it is not needed any more, and
// returns whether another took over from this one before the context ended.
func succeeded(ctx context.Context, serving <-chan struct{}, before *predecessor,
	backend *proxy.Backend, o *options, log *slog.Logger) bool {
	select {
	case <-ctx.Done():
		return false
	case <-serving:
	}
	before.ready()
	return o.handover != "" && passOn(ctx, o.handover, backend.Sockets, log)
}

// serve runs the engine and follows the files until the context ends, which is no error.
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
			// A service that was refused, since its port was taken, may have it now.
			if f.follow() || len(engine.Status().Refused) > 0 {
				engine.Set(f.state())
			}
		}
	}
}

// finish stops listening, and gives connections the time to end.
func finish(backend *proxy.Backend, drain time.Duration, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	backend.Retire()
	log.Info("stopped listening", "open", backend.Stats().Open, "drain", drain)
	if err := backend.Drain(ctx); err != nil {
		log.Warn("reset what is open", "reason", err)
	}
}
