package checks_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/checks"
	"github.com/kernlb/kernlb/servicemodel"
)

var (
	web = servicemodel.Name{Namespace: "default", Name: "web"}
	api = servicemodel.Name{Namespace: "default", Name: "api"}
)

// endpoints returns ready endpoints with a port.
func endpoints(port uint16, addrs ...string) (out []servicemodel.Endpoint) {
	for _, a := range addrs {
		out = append(out, servicemodel.Endpoint{Addr: netip.MustParseAddr(a),
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: port}}})
	}

	return out
}

// service is a service with endpoints.
func service(s servicemodel.State, n servicemodel.Name, last byte,
	eps []servicemodel.Endpoint) servicemodel.State {
	return s.WithService(&servicemodel.Service{Name: n,
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, last})},
		Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}},
	}).WithEndpoints(n, eps)
}

// ready returns the endpoints of a service that take new connections.
func ready(s servicemodel.State, n servicemodel.Name) string {
	var out []string
	for _, ep := range s.Endpoints(n) {
		if ep.Condition == servicemodel.Ready {
			out = append(out, ep.Addr.String())
		}
	}

	return strings.Join(out, " ")
}

// world is a follower in a synctest bubble, with endpoints whose answers can be switched.
type world struct {
	*testing.T
	follower *checks.Follower

	mu     sync.Mutex
	down   map[string]bool
	states []servicemodel.State // passed to set
	told   []string
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, down: map[string]bool{}}
	w.follower = ok(checks.NewFollower(func(s servicemodel.State) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.states = append(w.states, s)
	}, &checks.Config{Concurrency: 1, Changed: func(r checks.Report) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.told = append(w.told, fmt.Sprint(r.Target, " ", r.State))
	}, Ask: func(_ context.Context, of checks.Target) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.down[of.Addr().Addr().String()] {
			return errRefused
		}
		return nil
	}}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.follower.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})

	return w
}

// silent sets the endpoints that do not answer from now on.
func (w *world) silent(addrs ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.down)
	for _, a := range addrs {
		w.down[a] = true
	}
}

// after returns the ready endpoints of web and of api, after some time.
func (w *world) after(d time.Duration) string {
	time.Sleep(d)
	synctest.Wait()
	last := w.state(-1)
	return ready(last, web) + ", " + ready(last, api)
}

// state returns the first (0) or the last (-1) state that the follower passed on.
func (w *world) state(i int) servicemodel.State {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i < 0 {
		i = len(w.states) - 1
	}
	return w.states[i]
}

// count returns the number of states that the follower passed on.
func (w *world) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.states)
}

var fast = map[servicemodel.Name][]checks.Check{web: {{Type: checks.TCP, Interval: time.Second}}}

func TestEndpointsFollowTheirChecks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		eps := endpoints(8080, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
		eps[2].Condition, eps[3].Condition = servicemodel.Serving, servicemodel.Quiesced
		wanted := service(service(servicemodel.State{}, web, 1, eps), api, 2,
			endpoints(90, "10.0.0.1"))
		w.silent("10.0.0.2", "10.0.0.4")
		require.NoError(t, w.follower.Set(wanted, fast, nil))
		require.Equal(t, ", 10.0.0.1", ready(w.state(0), web)+", "+ready(w.state(0), api),
			"endpoints wait for their first check")
		require.Equal(t, "10.0.0.1, 10.0.0.1", w.after(0))
		require.Equal(t, servicemodel.Serving, w.state(-1).Endpoints(web)[2].Condition)
		require.Equal(t, servicemodel.Terminating, w.state(0).Endpoints(web)[2].Condition)
		require.Equal(t, servicemodel.Quiesced, w.state(0).Endpoints(web)[3].Condition)
		require.Equal(t, servicemodel.NotReady, w.state(-1).Endpoints(web)[3].Condition)
		require.Len(t, w.follower.Reports(), 4)

		w.silent("10.0.0.1", "10.0.0.4")
		require.Equal(t, "10.0.0.1 10.0.0.2, 10.0.0.1", w.after(2*time.Second-1))
		require.Equal(t, "10.0.0.2, 10.0.0.1", w.after(time.Second))
		n := w.count()
		w.after(time.Hour)
		require.Equal(t, n, w.count(), "nothing changes")
		w.mu.Lock()
		told := w.told
		w.mu.Unlock()
		require.ElementsMatch(t, []string{"tcp 10.0.0.1:8080 up", "tcp 10.0.0.2:8080 down",
			"tcp 10.0.0.3:8080 up", "tcp 10.0.0.4:8080 down", "tcp 10.0.0.2:8080 up",
			"tcp 10.0.0.1:8080 down"}, told)
	})
}

// Endpoints keep their states when the program sets a new state, and when their checks change.
func TestEndpointsKeepTheirStates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		wanted := service(servicemodel.State{}, web, 1, endpoints(80, "10.0.0.1", "10.0.0.2"))
		require.NoError(t, w.follower.Set(wanted, fast, nil))
		require.Equal(t, "10.0.0.1 10.0.0.2, ", w.after(0))
		w.silent("10.0.0.1", "10.0.0.2", "10.0.0.3")
		wanted = wanted.WithEndpoints(web, endpoints(80, "10.0.0.2", "10.0.0.3"))
		require.NoError(t, w.follower.Set(wanted, fast, nil))
		require.Equal(t, "10.0.0.2, ", w.after(0))
		others := map[servicemodel.Name][]checks.Check{web: {
			{Type: checks.TCP, Interval: 10 * time.Second, Jitter: -1},
			{Type: checks.TCP, Interval: 10 * time.Second, Jitter: -1, Port: 9}}}
		require.NoError(t, w.follower.Set(wanted, others, nil))
		require.Equal(t, "10.0.0.2, ", w.after(0))
		require.Len(t, w.follower.Reports(), 4)
		require.Equal(t, ", ", w.after(21*time.Second))
		w.silent()
		require.Equal(t, "10.0.0.2 10.0.0.3, ", w.after(30*time.Second))

		require.NoError(t, w.follower.Set(wanted, nil, nil))
		require.Empty(t, w.follower.Reports(), "a service without checks stays as it is")
		require.Equal(t, "10.0.0.2 10.0.0.3, ", w.after(0))
	})
}

// A program that starts continues with the kernel's endpoints.
func TestWhatTheKernelHoldsIsUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		held := ok(servicemodel.Resolve(nil, service(service(servicemodel.State{}, web, 1,
			endpoints(80, "10.0.0.1")), api, 2, endpoints(80, "10.0.0.2"))))(t)
		w.silent("10.0.0.1")
		require.NoError(t, w.follower.Set(service(servicemodel.State{}, web, 1,
			endpoints(80, "10.0.0.1", "10.0.0.2")), fast, held))
		require.Equal(t, "10.0.0.1", ready(w.state(0), web), "10.0.0.2 was of another service")
		require.Equal(t, "10.0.0.1 10.0.0.2, ", w.after(time.Second), "one failure is not enough")
		require.Equal(t, "10.0.0.2, ", w.after(2*time.Second))
	})
}

// An endpoint of several services is checked once for all of them.
func TestSharedTargetsAreAskedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		both := map[servicemodel.Name][]checks.Check{web: fast[web], api: fast[web]}
		require.NoError(t, w.follower.Set(service(service(servicemodel.State{}, web, 1,
			endpoints(80, "10.0.0.1")), api, 2, endpoints(80, "10.0.0.1")), both, nil))
		require.Equal(t, "10.0.0.1, 10.0.0.1", w.after(0))
		require.Len(t, w.follower.Reports(), 1)
		w.silent("10.0.0.1")
		require.Equal(t, ", ", w.after(4*time.Second))
		require.Equal(t, 3, w.count(), "one for each change")
	})
}

// An endpoint without a port is checked at the port of its service, to which packets are sent.
func TestAnEndpointWithoutAPortIsAskedAtThePortOfItsService(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan string, 100)
		f := ok(checks.NewFollower(func(servicemodel.State) {}, &checks.Config{
			Ask: func(_ context.Context, to checks.Target) error {
				asked <- to.Addr().String()
				return nil
			}}))(t)
		state := service(servicemodel.State{}, web, 1, endpoints(0, "10.0.0.1"))
		require.NoError(t, f.Set(state, map[servicemodel.Name][]checks.Check{
			web: {{Type: checks.TCP}}}, nil))
		ctx, stop := context.WithCancel(t.Context())
		go f.Run(ctx)
		require.Equal(t, "10.0.0.1:80", <-asked)
		stop()
	})
}

func TestWrongChecksOfServicesAreNamed(t *testing.T) {
	t.Parallel()
	f := ok(checks.NewFollower(func(servicemodel.State) { t.Error("nothing changes") }, nil))(t)
	none := endpoints(80, "10.0.0.1", "10.0.0.2")
	none[0].Ports, none[1].Ports = nil, nil
	state := service(servicemodel.State{}, web, 1, none)
	err := f.Set(state, map[servicemodel.Name][]checks.Check{
		web: {{Type: checks.TCP, Port: 80}, {Type: checks.HTTP, Interval: 1}}}, nil)
	require.EqualError(t, err, "service default/web: checks[1].interval: 1ns: must be at least "+
		"1ms\nservice default/web: checks[1].port: is missing, and the endpoint has none")
	var field *servicemodel.FieldError
	require.ErrorAs(t, err, &field)
	require.Equal(t, web, field.Service)
}
