// Balancer is a load balancer for one host, in 250 lines. Virtual addresses come from a file. The
// program connects to the backends, and the kernel balances among those that answer. A wrong file
// changes nothing at SIGHUP. When the program ends, the kernel goes on, and the next one adopts it.
//
//	balancer -config balancer.json [-interval 1s] [-check] [-trace 192.0.2.9]
package main

import (
	"cmp"
	"context"
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

	"sigs.k8s.io/yaml"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

type config struct {
	Services []service `json:"services"`
}

type service struct {
	Name      string                 `json:"name"`
	Address   netip.AddrPort         `json:"address"`
	Scheduler servicemodel.Scheduler `json:"scheduler"` // empty: the kernel mechanism's default
	Sources   []netip.Prefix         `json:"sources"`   // which clients may connect; empty: all
	Backends  []backend              `json:"backends"`
}

type backend struct {
	Address netip.AddrPort `json:"address"`
	Weight  uint16         `json:"weight"` // 0 means 1
}

func main() {
	path := flag.String("config", "balancer.json", "what to balance, a `file`")
	interval := flag.Duration("interval", time.Second, "time between two checks of a backend")
	check := flag.Bool("check", false, "say what is wrong with the file, and end")
	var trace netip.Addr
	flag.TextVar(&trace, "trace", trace, "say what happens to connections of a `client`, and end")
	flag.Parse()
	if flag.NArg() > 0 || *interval <= 0 {
		log.Fatalf("balancer: no flags %q, or not positive: -interval %v", flag.Args(), *interval)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := start(ctx, *path, *interval, *check, trace); err != nil {
		log.Fatalf("balancer: %v", err)
	}
}

// start chooses a kernel mechanism that can express the file, and balances with it.
func start(ctx context.Context, path string, d time.Duration, check bool, from netip.Addr) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	c, err := load(path)
	if err != nil {
		return err
	}
	if from.IsValid() {
		return c.trace(from)
	}
	lb, others, err := dataplane.Choose(ctx, c.state(nil), &dataplane.Config{Strict: true},
		nftables.Candidate(&nftables.Config{Table: "balancer"}),
		ipvs.Candidate(&ipvs.Config{Table: "balancer"}))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer lb.Close()
	slog.Info("chosen", "backend", lb.Name(), "not", others)
	if check {
		return nil
	}
	b := &balancer{engine: dataplane.New(lb, &dataplane.Config{Logger: slog.Default(),
		Strict: true}), interval: d, found: map[netip.AddrPort]servicemodel.Condition{}, dial: dial}
	return b.run(ctx, path, hangup)
}

// dial connects to a backend.
func dial(ctx context.Context, a netip.AddrPort) error {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", a.String())
	if err == nil {
		err = conn.Close()
	}
	return err
}

// load reads a file. The error says what is wrong with it.
func load(path string) (*config, error) {
	c := &config{}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err = yaml.UnmarshalStrict(text, c); err == nil && len(c.Services) == 0 { // JSON is YAML
		err = errors.New("the file has no service")
	}
	seen := map[any]bool{} // names and addresses of services, and backends, which get checks
	for _, s := range c.Services {
		for _, b := range s.Backends {
			seen[b.Address] = true
		}
	}
	for _, s := range c.Services {
		if err == nil && (seen[s.Name] || seen[s.Address]) {
			err = fmt.Errorf("two services have one name or address, or a backend is %q", s.Name)
		}
		seen[s.Name], seen[s.Address] = true, true
	}
	if err = cmp.Or(err, c.state(nil).Validate()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// state returns the state that the kernel is to hold.
func (c *config) state(found map[netip.AddrPort]servicemodel.Condition) servicemodel.State {
	state, tcp := servicemodel.State{}, servicemodel.TCP
	for _, s := range c.Services {
		svc := &servicemodel.Service{Scheduler: s.Scheduler, LoadBalancerSourceRanges: s.Sources,
			Name:            servicemodel.Name{Namespace: "balancer", Name: s.Name},
			Ports:           []servicemodel.ServicePort{{Protocol: tcp, Port: s.Address.Port()}},
			LoadBalancerIPs: []servicemodel.LoadBalancerIP{{Addr: s.Address.Addr()}}}
		var eps []servicemodel.Endpoint
		for _, b := range s.Backends {
			eps = append(eps, servicemodel.Endpoint{Addr: b.Address.Addr(), Weight: b.Weight,
				Condition: found[b.Address],
				Ports:     []servicemodel.EndpointPort{{Protocol: tcp, Port: b.Address.Port()}}})
		}
		state = state.WithService(svc).WithEndpoints(svc.Name, eps)
	}
	return state
}

// trace prints what happens to connections of a client, if all backends are up.
func (c *config) trace(from netip.Addr) error {
	table, err := servicemodel.Resolve(nil, c.state(nil))
	for _, s := range c.Services {
		fmt.Print(table.Trace(servicemodel.Packet{Protocol: servicemodel.TCP,
			Src: netip.AddrPortFrom(from, 40000), Dst: s.Address}, nil))
	}
	return err
}

// balancer checks the backends of a file, and gives states to an engine.
type balancer struct {
	engine   *dataplane.Engine
	dial     func(context.Context, netip.AddrPort) error
	interval time.Duration
	mu       sync.Mutex // of the fields below
	config   *config
	// found is what checks found. Others count as ready, so that a start interrupts nothing.
	found  map[netip.AddrPort]servicemodel.Condition
	stop   context.CancelFunc // of the checks of config
	checks sync.WaitGroup
}

// run balances until the context ends. hangup makes it read the file again.
func (b *balancer) run(ctx context.Context, path string, hangup <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(ctx)
	_, b.stop = context.WithCancel(ctx) // there are no checks yet
	defer b.checks.Wait()
	defer cancel()
	if err := b.take(ctx, path); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- b.engine.Run(ctx, nil) }()
	for {
		select {
		case err := <-ended:
			if errors.Is(err, context.Canceled) {
				slog.Info("stopped; the kernel stays as it is")
				err = nil
			}
			return err
		case <-hangup:
			if err := b.take(ctx, path); err != nil {
				slog.Error("the file is wrong, and nothing changes", "error", err)
			}
		}
	}
}

// take reads the file, and balances as it says, unless the kernel cannot hold that.
func (b *balancer) take(ctx context.Context, path string) error {
	c, err := load(path)
	if err != nil {
		return err
	}
	if _, err := b.engine.Plan(ctx, c.state(nil)); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stop()
	b.config = c
	b.engine.Set(c.state(b.found))
	ctx, b.stop = context.WithCancel(ctx)
	for _, s := range c.Services {
		for _, e := range s.Backends {
			is := b.found[e.Address]
			b.checks.Go(func() { b.watch(ctx, e.Address, is) })
		}
	}
	return nil
}

// watch connects to a backend again and again, until the context ends.
func (b *balancer) watch(ctx context.Context, a netip.AddrPort, is servicemodel.Condition) {
	for failed := 0; ctx.Err() == nil; {
		if failed++; b.dial(ctx, a) == nil {
			failed, is = 0, servicemodel.Ready
		} else if failed >= 3 {
			is = servicemodel.NotReady
		}
		b.tell(ctx, a, is)
		select {
		case <-ctx.Done():
		case <-time.After(b.interval):
		}
	}
}

// tell changes the state when a backend goes down or comes back, unless its checks were stopped.
func (b *balancer) tell(ctx context.Context, a netip.AddrPort, is servicemodel.Condition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ctx.Err() != nil || b.found[a] == is {
		return
	}
	slog.Info("backend", "address", a, "condition", is)
	b.found[a] = is
	b.engine.Set(b.config.state(b.found))
}
