// Userspace is a proxy for the services of Kubernetes manifests that needs neither a kernel
// mechanism nor privileges. It follows the files: a changed service changes at once, and
// connections of other services are not affected. README.md says how to use it, and package proxy
// how it works.
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
	"syscall"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/examples/internal/version"
	"github.com/kernlb/kernlb/examples/userspace/proxy"
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
	defer engine.Subscribe(follower.tell)()
	defer engine.Subscribe(func(ctx context.Context, ev dataplane.Event) {
		if ev, ok := ev.(dataplane.Applied); ok {
			if err := ports.Sync(ctx, ev.Changes.New); err != nil {
				log.Error("health check node ports", "error", err)
			}
		}
	})()
	engine.Set(follower.state())
	// Load balancers must learn at once that this host stops.
	if err := errors.Join(serve(ctx, engine, follower), ports.Close()); err != nil {
		return err
	}
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
