// Balancer is a load balancer for one host. Virtual addresses come from a file. The program checks
// the backends by connecting to them, and the kernel balances among those that answer. When the
// program stops or is killed, the kernel goes on. A new process adopts the kernel's contents.
//
//	balancer -config balancer.json
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

type config struct {
	Services []service `json:"services"`
}

type service struct {
	Name     string         `json:"name"`
	Address  netip.AddrPort `json:"address"`
	Backends []backend      `json:"backends"`
}

type backend struct {
	Address netip.AddrPort `json:"address"`
	Weight  uint16         `json:"weight"` // 0 means 1
}

const failures = 3 // failed checks in a row until a backend is down

func main() {
	path := flag.String("config", "balancer.json", "what to balance")
	interval := flag.Duration("interval", time.Second, "time between two checks of a backend")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *path, *interval); err != nil {
		log.Fatalf("balancer: %v", err)
	}
}

// run balances until the context ends.
func run(ctx context.Context, path string, interval time.Duration) error {
	c, err := load(path)
	if err != nil {
		return err
	}
	lb, err := nftables.New(&nftables.Config{Table: "balancer"})
	if err != nil {
		return err
	}
	defer lb.Close()
	engine := dataplane.New(lb, &dataplane.Config{Logger: slog.Default()})
	// A backend counts as up until a check has failed, so that a restart interrupts no backend.
	var mu sync.Mutex
	down := map[netip.AddrPort]bool{}
	set := func(a netip.AddrPort, isDown bool) {
		mu.Lock()
		defer mu.Unlock()
		slog.Info("backend", "address", a, "down", isDown)
		down[a] = isDown
		engine.Set(c.state(down))
	}
	engine.Set(c.state(down))
	var checks sync.WaitGroup
	defer checks.Wait()
	for _, s := range c.Services {
		for _, b := range s.Backends {
			checks.Go(func() { watch(ctx, b.Address, interval, set) })
		}
	}
	if err = engine.Run(ctx, nil); errors.Is(err, context.Canceled) {
		return nil // it was asked to stop
	}
	return err
}

func load(path string) (*config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, d := &config{}, json.NewDecoder(f)
	d.DisallowUnknownFields()
	if err := d.Decode(c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, c.state(nil).Validate()
}

// state returns the state that the kernel is to hold.
func (c *config) state(down map[netip.AddrPort]bool) servicemodel.State {
	var state servicemodel.State
	for _, s := range c.Services {
		port := servicemodel.ServicePort{Protocol: servicemodel.TCP, Port: s.Address.Port()}
		name := servicemodel.Name{Namespace: "balancer", Name: s.Name}
		var eps []servicemodel.Endpoint
		for _, b := range s.Backends {
			eps = append(eps, servicemodel.Endpoint{Addr: b.Address.Addr(), Weight: b.Weight,
				Ready: !down[b.Address], Ports: []servicemodel.EndpointPort{
					{Protocol: servicemodel.TCP, Port: b.Address.Port()}}})
		}
		state = state.WithService(&servicemodel.Service{
			Name: name, Ports: []servicemodel.ServicePort{port},
			LoadBalancerIPs: []servicemodel.LoadBalancerIP{{Addr: s.Address.Addr()}},
		}).WithEndpoints(name, eps)
	}
	return state
}

// watch connects to a backend again and again, and calls tell when it goes down or comes back.
func watch(ctx context.Context, a netip.AddrPort, interval time.Duration,
	tell func(a netip.AddrPort, down bool)) {
	dialer, failed := net.Dialer{Timeout: interval}, 0
	for ctx.Err() == nil {
		conn, err := dialer.DialContext(ctx, "tcp", a.String())
		switch {
		case err == nil:
			_ = conn.Close()
			if failed >= failures {
				tell(a, false)
			}
			failed = 0
		case ctx.Err() == nil:
			if failed++; failed == failures {
				tell(a, true)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		}
	}
}
