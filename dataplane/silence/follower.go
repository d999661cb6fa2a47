package silence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/servicemodel"
)

// Config tunes a [Follower].
type Config struct {
	// Table must be set. It returns the table in the kernel, or nil if it is unknown: the field
	// Held of an engine's Status. It must not block.
	Table func() *servicemodel.Table
	// Changed is called when an endpoint was ejected or let back in, after the new state was set:
	// one call at a time. It must call no method of the follower except Ejected. Nil ignores
	// changes.
	Changed func(Change)
	// Earlier are the endpoints that were ejected when an earlier process ended, as
	// [Follower.Ejected] returned them. If the first state has them, they are ejected from the
	// start, and tried at once. Without it, all endpoints are in use at first, and silent endpoints
	// are ejected again.
	Earlier []Change
	// MaxShare is the largest share of a pool's endpoints that may be ejected at a time, from 0 to
	// 1. Zero means a half. At least one endpoint of each pool is never ejected.
	MaxShare float64
	// Asked limits the follower to services whose SilentEndpoints is [servicemodel.SilentEject].
	// Without it, the follower watches all services except those whose SilentEndpoints is
	// [servicemodel.SilentStay].
	Asked bool
	// IPVS says that the services are in IPVS, which does not mark flows as translated. The kernel
	// then sends a message for each new TCP connection of the network namespace.
	IPVS bool
	// NetNS names the network namespace of the services. Empty means the namespace of the process.
	NetNS netns.Namespace
}

// Change says that an endpoint was ejected or let back in.
type Change struct {
	Service  servicemodel.PortName `json:"service"`
	Endpoint netip.AddrPort        `json:"endpoint"`
	// Out says that the endpoint was ejected, at Time. Otherwise it was let back in.
	Out  bool      `json:"out"`
	Time time.Time `json:"time"`
	// Since is the start of the first unanswered connection or, if the endpoint was let back in,
	// the time of its ejection.
	Since time.Time `json:"since"`
	// Connections and Clients count the unanswered connections that made the endpoint suspect. They
	// are a sample if there are more than 250 new connections per second.
	Connections int `json:"connections"`
	Clients     int `json:"clients"`
	// Trial says that the endpoint was let back in without an answer: to see whether it answers
	// clients, or because too few other endpoints were left.
	Trial bool `json:"trial,omitzero"`
}

// String returns a line such as "10.0.0.1:8080 of default/web:http ejected: 12 connections of 5
// clients unanswered in 400ms".
func (c Change) String() string {
	what := fmt.Sprintf("%s of %s", c.Endpoint, c.Service)
	took := c.Time.Sub(c.Since).Round(time.Millisecond)
	switch {
	case c.Out:
		return fmt.Sprintf("%s ejected: %s", what, c.Evidence())
	case c.Trial:
		return fmt.Sprintf("%s let in on trial after %s", what, took)
	}

	return fmt.Sprintf("%s answers again after %s", what, took)
}

// Evidence returns the reason for an ejection, such as "12 connections of 5 clients unanswered in
// 400ms".
func (c Change) Evidence() string {
	return fmt.Sprintf("%d connections of %d clients unanswered in %s", c.Connections, c.Clients,
		c.Time.Sub(c.Since).Round(time.Millisecond))
}

// Status describes the state of an endpoint that is ejected, such as "ejected 4s ago: 12
// connections of 5 clients unanswered in 400ms", or on trial, such as "on trial for 4s: no answer
// since it was ejected 34s ago".
func (c Change) Status(now time.Time) string {
	age := now.Sub(c.Time).Truncate(time.Second)
	if c.Trial {
		return fmt.Sprintf("on trial for %s: no answer since it was ejected %s ago", age,
			now.Sub(c.Since).Truncate(time.Second))
	}
	return fmt.Sprintf("ejected %s ago: %s", age, c.Evidence())
}

// Follower passes states to an engine, without the endpoints that do not answer. Its methods are
// safe for concurrent use, but only one Run may be running.
type Follower struct {
	cfg   Config
	set   func(servicemodel.State)
	table *conntrack.Table
	watch watch
	woken chan struct{} // the state or the judge changed
	added chan struct{} // connections were added to an empty queue
	asked chan answer

	mu    sync.Mutex
	judge *judge
	state servicemodel.State // as the program wants it
	has   bool               // Set was called
	index *flows.Index
	of    *servicemodel.Table // that index is of
	made  time.Time           // when index was made
}

// answer says whether an endpoint answered the follower's connections.
type answer struct {
	place
	answered bool
}

// NewFollower returns a follower without a state. It calls set, usually Engine.Set, with each new
// state: one call at a time, the newest state last. set must not block, and must not call the
// follower. The caller closes the follower. The errors are those of [conntrack.Open].
func NewFollower(set func(servicemodel.State), cfg *Config) (*Follower, error) {
	if cfg == nil || cfg.Table == nil {
		return nil, errors.New("silence: Config.Table: is not set")
	}
	share := cmp.Or(cfg.MaxShare, 0.5)
	if !(share > 0 && share <= 1) {
		return nil, fmt.Errorf("silence: Config.MaxShare: %g is not from 0 to 1", share)
	}
	table, err := conntrack.Open(&conntrack.Config{NetNS: cfg.NetNS})
	if err != nil {
		return nil, fmt.Errorf("silence: %w", err)
	}
	f := &Follower{cfg: *cfg, set: set, table: table,
		watch: watch{table: table, ipvs: cfg.IPVS}, woken: make(chan struct{}, 1),
		added: make(chan struct{}, 1), asked: make(chan answer), judge: newJudge(share)}
	f.judge.remember(cfg.Earlier, time.Now())
	return f, nil
}

// Close releases the follower's sockets. Run must have returned.
func (f *Follower) Close() error { return f.table.Close() }

// Set passes a state to the engine, without the ejected endpoints, before it returns. The cost
// depends on the number of endpoints of the services that have an ejected endpoint.
func (f *Follower) Set(s servicemodel.State) {
	f.take(s, time.Now())
	select {
	case f.woken <- struct{}{}:
	default:
	}
}

// take does the work of Set, as of a given time.
func (f *Follower) take(s servicemodel.State, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state, f.has = s, true
	f.judge.keep(f.wants, f.pools, now)
	f.set(Without(f.state, f.judge.ejected()))
}

// Ejected returns the ejected endpoints, each with the change that ejected it, in the order of
// their ejection.
func (f *Follower) Ejected() []Change {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.judge.ejected()
}

// Silent returns the ejected endpoints, and the endpoints that were let back in on trial and have
// not answered since ([Change.Trial]), in the order of time.
func (f *Follower) Silent() []Change {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.judge.silent()
}

// Run watches new connections until the context ends, and returns the context's error, or the error
// that ended the watch. While there is no service to watch, it does not listen for events.
// Endpoints that are ejected when it returns stay ejected until the next call of Run.
func (f *Follower) Run(ctx context.Context) error {
	for {
		if f.needed() {
			if err := f.follow(ctx); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.woken:
		}
	}
}

// needed reports whether a service is to be watched.
func (f *Follower) needed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.cfg.Asked || f.state.Ejecting() > 0
}

// follow watches new connections while that is needed.
func (f *Follower) follow(ctx context.Context) error {
	f.watch.young, f.watch.old = nil, nil // of an earlier call
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	ended := make(chan error, 1)
	work.Go(func() { ended <- f.watch.follow(ctx, f.added) })
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case a := <-f.asked:
			f.mu.Lock()
			f.judge.heard(a.place, a.answered, time.Now())
			f.mu.Unlock()
		case <-f.woken:
			if !f.needed() {
				return nil
			}
		case <-tick.C:
		case <-f.added:
		}

		wait, err := f.work(ctx, &work)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("silence: %w", err)
		}
		tick.Reset(wait)
	}
}

// pace is the shortest time between two look-ups, so that one look-up covers several connections.
const pace = 20 * time.Millisecond

// work looks up the connections that are due, judges endpoints, and connects to suspects. It
// returns the time until something may be due.
func (f *Follower) work(ctx context.Context, work *sync.WaitGroup) (time.Duration, error) {
	now := time.Now()
	index, err := f.indexNow(now)
	if err != nil {
		return 0, err
	}
	samples, err := f.watch.look(ctx, now, index)
	if err != nil {
		return 0, err
	}
	ask, wait := f.decide(samples, now)
	for _, p := range ask {
		work.Go(func() { f.ask(ctx, p) })
	}
	if at, ok := f.watch.due(); ok {
		wait = min(wait, max(time.Until(at), pace))
	}
	return wait, nil
}

// decide judges by new samples, and sets a state if that changes anything. It returns the endpoints
// to connect to, and the time until the next call.
func (f *Follower) decide(samples []sample, now time.Time) (ask []place, wait time.Duration) {
	f.mu.Lock()
	for _, s := range samples {
		if svc, _ := f.state.Peek(s.service.Name); f.watches(svc) {
			f.judge.hear(s, now)
		}
	}
	ask, wait = f.judge.next(now, f.pools), time.Minute
	if len(f.judge.open) > 0 {
		wait = between / 4
	}
	news := f.judge.news
	f.judge.news = nil
	if len(news) > 0 && f.has {
		f.set(Without(f.state, f.judge.ejected()))
	}
	f.mu.Unlock()

	for _, c := range news {
		if f.cfg.Changed != nil {
			f.cfg.Changed(c)
		}
	}

	return ask, wait
}

// indexAge is the age at which the addresses of the node are read again.
const indexAge = 10 * time.Second

// indexNow returns the index of the services in the kernel.
func (f *Follower) indexNow(now time.Time) (*flows.Index, error) {
	held := f.cfg.Table()
	if held == nil {
		held = f.of
	}
	if f.index == nil || held != f.of || now.Sub(f.made) > indexAge {
		addrs, err := f.table.NodeAddrs([]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"),
			netip.MustParsePrefix("::/0")})
		if err != nil {
			return nil, err
		}
		f.index, f.of, f.made = flows.NewIndex(held, addrs), held, now
	}

	return f.index, nil
}

// pools returns the desired pools that have an endpoint, with the ejected endpoints.
func (f *Follower) pools(p place) (out [][]netip.AddrPort) {
	svc, _ := f.state.Peek(p.service.Name)
	if svc == nil {
		return nil
	}
	hasLocal := servicemodel.PolicyLocal == svc.InternalTrafficPolicy ||
		servicemodel.PolicyLocal == svc.ExternalTrafficPolicy
	var cluster, local []netip.AddrPort
	for _, s := range servicemodel.Select(f.state, p.service,
		servicemodel.FamilyOf(p.endpoint.Addr())) {
		if s.Cluster == "" {
			cluster = append(cluster, s.Target)
		}
		if s.Local == "" && hasLocal {
			local = append(local, s.Target)
		}
	}

	for _, pool := range [][]netip.AddrPort{cluster, local} {
		if slices.Contains(pool, p.endpoint) {
			out = append(out, pool)
		}
	}

	return out
}

// ask connects to an endpoint, and tells Run whether the endpoint answered. At the same time, it
// connects to another endpoint that answers clients. If neither endpoint answers, this node is too
// busy or cut off, and the result is discarded.
func (f *Follower) ask(ctx context.Context, p place) {
	f.mu.Lock()
	r := f.judge.at(p)
	timeout := patience
	if !r.out && r.prompt {
		timeout = quick
	}
	other, compare := f.judge.control(r, p)
	f.mu.Unlock()
	var otherErr error
	var errs [questions]error
	var all sync.WaitGroup
	if compare {
		all.Go(func() { otherErr = f.connect(ctx, other, timeout) })
	}
	for i := range errs {
		all.Go(func() { errs[i] = f.connect(ctx, p.endpoint, timeout) })
	}
	all.Wait()
	answers := slices.Contains(errs[:], nil)
	if !answers && (otherErr != nil || slices.ContainsFunc(errs[:], func(err error) bool {
		return !silent(err)
	})) {
		return // the question was not asked
	}
	select {
	case f.asked <- answer{p, answers}:
	case <-ctx.Done():
	}
}

// connect connects to an endpoint from the namespace of the services.
func (f *Follower) connect(ctx context.Context, at netip.AddrPort, timeout time.Duration) error {
	dialer := net.Dialer{Timeout: timeout, KeepAlive: -1}
	return f.table.Do(func() error {
		conn, err := dialer.DialContext(ctx, "tcp", at.String())
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

// silent reports whether a connection error means that the endpoint does not answer, and not that
// this node could not connect.
func silent(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout() || slices.ContainsFunc([]error{
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EHOSTUNREACH, syscall.ENETUNREACH,
		syscall.EHOSTDOWN}, func(e error) bool { return errors.Is(err, e) })
}

// Without returns a state in which the given ejected endpoints, from [Follower.Ejected], take no
// connections: they are not ready, or terminate. Their open connections continue or end according
// to the service's policy. Changes of endpoints that are not in the state are ignored.
func Without(s servicemodel.State, out []Change) servicemodel.State {
	of := map[servicemodel.Name]map[place]bool{}
	for _, c := range out {
		if name := c.Service.Name; of[name] == nil {
			of[name] = map[place]bool{}
		}
		of[c.Service.Name][place{c.Service, c.Endpoint}] = true
	}

	for name, places := range of {
		if svc, eps := s.Peek(name); svc != nil {
			s = s.WithEndpoints(name, without(svc, eps, places))
		}
	}

	return s
}

// Explain adds a step to a trace, before the outcome, for each ejected endpoint of the service port
// that the packet matches.
func Explain(t *servicemodel.Trace, out []Change, now time.Time) {
	for _, c := range Of(t.Decision.Frontend, out) {
		t.Steps = slices.Insert(t.Steps, len(t.Steps)-1, servicemodel.Step{Kind: "silent",
			Text: fmt.Sprintf("%v %s", c.Endpoint, c.Status(now))})
	}
}

// Of returns the changes of endpoints of a frontend, which may be nil.
func Of(f *servicemodel.Frontend, all []Change) (of []Change) {
	for _, c := range all {
		if f != nil && c.Service == f.Service &&
			servicemodel.FamilyOf(c.Endpoint.Addr()) == f.Key.Family() {
			of = append(of, c)
		}
	}

	return of
}

// without returns the endpoints of a service. Ejected ports are in separate endpoints, which take
// no connections.
func without(svc *servicemodel.Service, eps iter.Seq[servicemodel.Endpoint],
	places map[place]bool) (out []servicemodel.Endpoint) {
	for ep := range eps {
		var in, silent []servicemodel.EndpointPort
		for _, p := range ep.Ports {
			if places[portOf(svc, &ep, p)] {
				silent = append(silent, p)
			} else {
				in = append(in, p)
			}
		}

		if len(in) > 0 || len(silent) == 0 {
			ep.Ports = in
			out = append(out, ep)
		}

		if len(silent) > 0 {
			ep.Ports = silent
			ep.Condition = ep.Condition.Unready()
			out = append(out, ep)
		}
	}

	return out
}

// portOf returns the place of a port of an endpoint.
func portOf(svc *servicemodel.Service, ep *servicemodel.Endpoint,
	p servicemodel.EndpointPort) place {
	return place{servicemodel.PortName{Name: svc.Name, Port: p.Name, Protocol: p.Protocol},
		netip.AddrPortFrom(ep.Addr, svc.TargetPort(p))}
}

// watches reports whether the endpoints of a service may be ejected.
func (f *Follower) watches(svc *servicemodel.Service) bool {
	return svc != nil && (svc.SilentEndpoints == servicemodel.SilentEject ||
		svc.SilentEndpoints == servicemodel.SilentDefault && !f.cfg.Asked)
}

// wants reports whether the program wants an endpoint, and it may be ejected.
func (f *Follower) wants(p place) bool {
	svc, eps := f.state.Peek(p.service.Name)
	if !f.watches(svc) {
		return false
	}
	for ep := range eps {
		if slices.ContainsFunc(ep.Ports, func(port servicemodel.EndpointPort) bool {
			return portOf(svc, &ep, port) == p
		}) {
			return true
		}
	}

	return false
}
