// Balancer is a load balancer for one host, in 220 lines. Virtual addresses come from a file. The
// program connects to the backends, and the kernel balances among the backends that answer. At
// SIGHUP, a wrong file changes nothing. When the program ends, the kernel continues, and the next
// process adopts its contents.
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
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/yaml"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/checks"
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
	chosen, err := dataplane.Choose(ctx, c.state(), &dataplane.Config{Strict: true},
		nftables.Candidate(&nftables.Config{Table: "balancer"}),
		ipvs.Candidate(&ipvs.Config{Table: "balancer"}))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	lb := chosen.Backend
	defer lb.Close()
	slog.Info("chosen", "backend", lb.Name(), "not", chosen.Others)
	if check {
		return nil
	}
	b, err := newBalancer(dataplane.New(lb, &dataplane.Config{Logger: slog.Default(),
		Strict: true}), d, nil)
	if err != nil {
		return err
	}
	return b.run(ctx, path, hangup)
}

// load reads a file. The error names the fault in the file.
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
			if err == nil && b.Address.Port() == 0 {
				err = fmt.Errorf("service %q: backend %q has no port", s.Name, b.Address)
			}
		}
	}
	for _, s := range c.Services {
		if err == nil && (seen[s.Name] || seen[s.Address]) {
			err = fmt.Errorf("two services have one name or address, or a backend is %q", s.Name)
		}
		seen[s.Name], seen[s.Address] = true, true
	}
	if err = cmp.Or(err, c.state().Validate()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// state returns the desired state while all backends answer.
func (c *config) state() servicemodel.State {
	state, tcp := servicemodel.State{}, servicemodel.TCP
	for _, s := range c.Services {
		svc := &servicemodel.Service{Scheduler: s.Scheduler, LoadBalancerSourceRanges: s.Sources,
			Name:            s.name(),
			Ports:           []servicemodel.ServicePort{{Protocol: tcp, Port: s.Address.Port()}},
			LoadBalancerIPs: []servicemodel.LoadBalancerIP{{Addr: s.Address.Addr()}}}
		var eps []servicemodel.Endpoint
		for _, b := range s.Backends {
			eps = append(eps, servicemodel.Endpoint{Addr: b.Address.Addr(), Weight: b.Weight,
				Ports: []servicemodel.EndpointPort{{Protocol: tcp, Port: b.Address.Port()}}})
		}
		state = state.WithService(svc).WithEndpoints(svc.Name, eps)
	}
	return state
}

// name returns the name of the service in the state.
func (s *service) name() servicemodel.Name {
	return servicemodel.Name{Namespace: "balancer", Name: s.Name}
}

// trace prints what happens to connections of a client, if all backends are up.
func (c *config) trace(from netip.Addr) error {
	table, err := servicemodel.Resolve(nil, c.state())
	for _, s := range c.Services {
		fmt.Print(table.Trace(servicemodel.Packet{Protocol: servicemodel.TCP,
			Src: netip.AddrPortFrom(from, 40000), Dst: s.Address}, nil))
	}
	return err
}

// balancer checks the backends of a file, and gives states to an engine.
type balancer struct {
	engine   *dataplane.Engine
	follower *checks.Follower
	interval time.Duration
}

// newBalancer returns a balancer without services. ask replaces the network in tests.
func newBalancer(e *dataplane.Engine, interval time.Duration,
	ask func(context.Context, checks.Target) error) (*balancer, error) {
	f, err := checks.NewFollower(func(s servicemodel.State) { e.Set(s) },
		&checks.Config{Ask: ask, Changed: func(r checks.Report) {
			slog.Info("backend", "check", r.Target, "state", r.State, "error", r.Err)
		}})
	return &balancer{e, f, interval}, err
}

// run balances until the context ends. hangup makes it read the file again.
func (b *balancer) run(ctx context.Context, path string, hangup <-chan os.Signal) error {
	held, err := b.engine.Observe(ctx) // what the kernel balances over is up until it fails
	if err != nil {
		return err
	}
	if err := b.take(ctx, path, held.Table); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.engine.Run(ctx, nil) })
	g.Go(func() error { return b.follower.Run(ctx) })
	g.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-hangup:
				if err := b.take(ctx, path, nil); err != nil {
					slog.Error("the file is wrong, and nothing changes", "error", err)
				}
			}
		}
	})
	if err := g.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	slog.Info("stopped; the kernel stays as it is")
	return nil
}

// take reads the file, and balances as it says, unless the backend cannot express the file.
func (b *balancer) take(ctx context.Context, path string, held *servicemodel.Table) error {
	c, err := load(path)
	if err != nil {
		return err
	}
	if _, err := b.engine.Plan(ctx, c.state()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	all := map[servicemodel.Name][]checks.Check{}
	for _, s := range c.Services {
		all[s.name()] = []checks.Check{{Type: checks.TCP, Interval: b.interval, Rise: 1}}
	}
	return b.follower.Set(c.state(), all, held)
}
