package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/checks"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

const someConfig = `{"services": [{
	"name": "web", "address": "203.0.113.10:80", "sources": ["198.51.100.0/24"],
	"backends": [{"address": "10.244.1.1:8080"}, {"address": "10.244.1.2:8080", "weight": 3}]}]}`

// world has a kernel and a network in memory.
type world struct {
	*testing.T
	kernel *memory.Kernel
	hangup chan os.Signal
	path   string

	mu     sync.Mutex
	silent map[string]bool // backends that do not answer
}

// start runs the program until stop is called.
func (w *world) start() (stop func()) {
	w.Helper()
	backend := memory.New(w.kernel)
	backend.Refuse(nftables.Check)
	b, err := newBalancer(dataplane.New(backend, &dataplane.Config{Strict: true}),
		time.Millisecond, func(_ context.Context, t checks.Target) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.silent[t.Addr().String()] {
				return errors.New("silent")
			}
			return nil
		})
	require.NoError(w, err)
	ctx, cancel := context.WithCancel(w.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.run(ctx, w.path, w.hangup) }()
	return func() {
		cancel()
		require.NoError(w, <-ended)
	}
}

// answers sets whether a backend answers its checks.
func (w *world) answers(a string, does bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent[a] = !does
}

// write replaces the file.
func (w *world) write(text string) {
	w.Helper()
	require.NoError(w, os.WriteFile(w.path, []byte(text), 0o600))
}

// decides returns the kernel's decision about a connection of a client.
func (w *world) decides(client string) string {
	return w.kernel.Table().Decide(servicemodel.Packet{Protocol: servicemodel.TCP,
		Src: netip.MustParseAddrPort(client + ":40000"),
		Dst: netip.MustParseAddrPort("203.0.113.10:80")}, nil).String()
}

// soon waits until this is the kernel's decision about a client that may connect.
func (w *world) soon(want string) {
	w.Helper()
	require.EventuallyWithT(w, func(c *assert.CollectT) {
		assert.Equal(c, ordered(want+": load-balancer of balancer/web, from outside"),
			ordered(w.decides("198.51.100.7")))
	}, time.Minute, time.Millisecond)
}

// ordered returns a decision with its endpoints in order. In the kernel, the endpoints are in the
// order in which their checks passed.
func ordered(decision string) string {
	list, rest, _ := strings.Cut(strings.TrimPrefix(decision, "balanced over "), ": ")
	endpoints := strings.Split(list, ", ")
	slices.Sort(endpoints)
	return strings.Join(endpoints, ", ") + ": " + rest
}

const (
	first  = "balanced over 10.244.1.1:8080 masqueraded"
	second = "balanced over 10.244.1.2:8080 masqueraded"
	both   = first + ", 10.244.1.2:8080 weight 3 masqueraded"
)

func TestBackendsThatFailWithoutAKernel(t *testing.T) {
	t.Parallel()
	w := &world{T: t, kernel: &memory.Kernel{}, hangup: make(chan os.Signal),
		path: filepath.Join(t.TempDir(), "balancer.json"), silent: map[string]bool{}}
	w.write(someConfig)
	stop := w.start()
	w.soon(both)
	require.Contains(t, w.decides("192.0.2.9"), "dropped")
	w.answers("10.244.1.2:8080", false)
	w.soon(first)

	for _, wrong := range []string{`{"services": []}`, `{`, `{"services": [{"name": "web",
		"address": "203.0.113.10:80", "scheduler": "sed"}]}`} {
		w.write(wrong)
		for range 2 { // the second one is read after the first was judged
			w.hangup <- os.Interrupt
		}
		w.soon(first)
	}
	w.answers("10.244.1.2:8080", true) // the checks of the last correct file continue
	w.soon(both)
	w.write(someConfig)
	w.hangup <- os.Interrupt
	w.soon(both)

	// Without the program the kernel continues, and a new process adopts its contents.
	stop()
	w.soon(both)
	w.answers("10.244.1.1:8080", false)
	stop = w.start()
	w.soon(second)
	stop()
}

func TestWhatIsWrongWithTheFileIsSaid(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"service": []}`:  `unknown field "service"`,
		`{"services": []}`: "the file has no service",
		`{"services": [{"name": "web", "address": "203.0.113.10:80"},
			{"name": "web", "address": "203.0.113.11:80"}]}`: "two services have one name",
		`{"services": [{"name": "web", "address": "203.0.113.10"}]}`: "not an ip:port",
		`{"services": [{"name": "web", "address": "203.0.113.10:80"}]}
			{"services": []}`: "yaml: ", // what follows is not ignored
		`{"services": [{"name": "", "address": "203.0.113.10:80"}]}`: "name",
		`{"services": [{"name": "web", "address": "203.0.113.10:80", "scheduler": "x"}]}`: "" +
			"service balancer/web: scheduler: \"x\": unknown scheduler",
	} {
		path := filepath.Join(t.TempDir(), "balancer.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := load(path)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, path)
	}
}

func Example() {
	c := &config{Services: []service{{Name: "web",
		Address:  netip.MustParseAddrPort("203.0.113.10:80"),
		Sources:  []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
		Backends: []backend{{Address: netip.MustParseAddrPort("10.244.1.1:8080")}}}}}
	_ = c.trace(netip.MustParseAddr("1.2.3.4"))
	// Output:
	// 1.2.3.4 -> 203.0.113.10:80/tcp
	//   source       1.2.3.4 counts as outside: the node names no network of pods (Node.LocalPods)
	//   destination  203.0.113.10:80/tcp is a load balancer IP of balancer/web
	//   sources      only 198.51.100.0/24 may connect
	//   outcome      dropped: 1.2.3.4 may not connect, only 198.51.100.0/24
}

// A correct file is accepted whichever backends are up.
func TestRightMeansRightInEveryState(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "balancer.json")
	right, wrong := 0, 0
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := config{}
		for i := range 1 + r.IntN(3) {
			s := service{Name: fmt.Sprint("s", i), Scheduler: "wrr",
				Address: netip.MustParseAddrPort(fmt.Sprintf("203.0.113.%d:80", 1+r.IntN(9)))}
			for j := range 1 + r.IntN(4) {
				a := fmt.Sprintf("10.0.0.%d:80", 1+j)
				if r.IntN(8) == 0 {
					a = []string{"127.0.0.1:80", "203.0.113.1:80", s.Address.String()}[r.IntN(3)]
				}
				s.Backends = append(s.Backends, backend{netip.MustParseAddrPort(a),
					[]uint16{0, 1, 3, 32768, 65534, 65535}[r.IntN(6)]})
			}
			c.Services = append(c.Services, s)
		}
		text, err := json.Marshal(c)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		loaded, err := load(path)
		check := func(s servicemodel.State) error {
			table, err := servicemodel.Resolve(nil, s)
			if err != nil {
				return err
			}
			require.Empty(t, slices.Collect(table.Conflicts()), string(text))
			return nftables.Check(servicemodel.Diff(nil, table))
		}
		if err != nil || check(loaded.state()) != nil {
			wrong++
			continue
		}
		right++
		for range 16 {
			state := loaded.state()
			for _, s := range loaded.Services {
				eps := state.Endpoints(s.name())
				for i := range eps {
					if r.IntN(2) == 0 {
						eps[i].Condition = servicemodel.NotReady
					}
				}
				state = state.WithEndpoints(s.name(), eps)
			}
			require.NoError(t, check(state), string(text))
		}
	}
	require.Greater(t, right, 50)
	require.Greater(t, wrong, 50)
}

func TestWhatAsksTheBalancerItselfIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "balancer.json")
	for _, services := range []string{
		`{"name": "a", "address": "203.0.113.1:80", "backends": [{"address": "203.0.113.2:80"}]},
			{"name": "b", "address": "203.0.113.2:80"}`,
		`{"name": "a", "address": "203.0.113.1:80"}, {"name": "b", "address": "203.0.113.1:80"}`,
	} {
		require.NoError(t, os.WriteFile(path, []byte(`{"services": [`+services+`]}`), 0o600))
		_, err := load(path)
		require.ErrorContains(t, err, `one name or address, or a backend is "b"`)
	}
}
