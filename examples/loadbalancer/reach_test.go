package main

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/checks"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/examples/loadbalancer/config"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

// mechanism is a kernel in memory that can express what a mechanism of the kernel can.
type mechanism struct {
	backends.Backend
	name string
}

func (m mechanism) Name() string                          { return m.name }
func (m mechanism) Unwrap() backends.Backend              { return m.Backend }
func (m mechanism) Check(c *servicemodel.ChangeSet) error { return mechanismChecks[m.name](c) }
func pick[T any](r *rand.Rand, of ...T) T                 { return of[r.IntN(len(of))] }
func seldomly[T any](r *rand.Rand, usual T, rare ...T) T {
	if r.IntN(16) > 0 {
		return usual
	}
	return pick(r, rare...)
}

// randomFile returns a file that may be wrong.
func randomFile(r *rand.Rand) *config.File {
	f := &config.File{Zone: pick(r, "", "a")}
	if r.IntN(20) == 0 {
		f.Timeouts.TCP = time.Hour
	}
	for i := range 1 + r.IntN(3) {
		f.Services = append(f.Services, randomService(r, i))
	}
	return f
}

func randomService(r *rand.Rand, i int) config.Service {
	address := func(last int) netip.AddrPort {
		port := pick(r, 80, 80, 80, 8080)
		return netip.MustParseAddrPort(seldomly(r, fmt.Sprintf("10.0.0.%d:%d", last, port),
			fmt.Sprintf("[fd00::%d]:%d", last, port), fmt.Sprintf("[fd00::%d]:%d", last, port),
			"127.0.0.1:80", "203.0.113.1:80", "169.254.0.1:80", "10.0.0.1:0"))
	}

	probes := func() (l []config.Check) {
		for range r.IntN(3) {
			l = append(l, config.Check{Type: "tcp", Interval: time.Hour,
				Address: config.Addr{Addr: seldomly(r, netip.Addr{},
					netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("10.9.9.9"))}})
		}

		return l
	}

	s := config.Service{Name: fmt.Sprint("s", i), Port: 80,
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(1 + i)})},
		Protocol:  pick(r, "", "tcp", "udp"), Prefer: pick(r, "", "", "zone"),
		Scheduler: seldomly(r, "", "random", "rr", "wrr", "wlc", "sh", "mh", "fo"),
		SlowStart: pick(r, 0, 0, 10*time.Second), Checks: probes(),
		Forwarding:  seldomly(r, "", "nat", "direct", "tunnel"),
		Affinity:    pick(r, 0, 0, time.Minute),
		Connections: pick(r, "", "cut", "30s")}
	for j := range 1 + r.IntN(5) {
		b := config.Backend{Address: address(1 + j), Zone: pick(r, "", "a", "b"), Checks: probes()}
		if r.IntN(2) == 0 {
			b.Weight = new(pick[uint16](r, 0, 1, 3, 100, 32768, 65534, 65535))
		}
		s.Backends = append(s.Backends, b)
	}

	for j := range r.IntN(3) {
		s.Sorry = append(s.Sorry, address(11+j))
	}
	return s
}

// loaded returns a file as a program loads it.
func loaded(t *testing.T, f *config.File) (*config.File, error) {
	return config.Parse("lb.yaml", must.OK(f.Encode())(t))
}

// namesField matches an error that names a field of a file.
const namesField = `^lb.yaml:\d+: (timeouts|services\[\d\]\.(addresses\[\d\]|scheduler|prefer|` +
	`slowStart|forwarding|affinity|sorry\[\d\]|backends|backends\[\d\].address|` +
	`(backends\[\d\]\.)?checks\[\d\].address)): `

// A file that -check calls right can be started and loaded again. All states that can result from
// its checks are valid for the model and for the kernel mechanism. A wrong file changes nothing,
// and its errors name the file's fields.
func TestRightMeansRightInEveryState(t *testing.T) {
	t.Parallel()
	right, wrong := 0, 0
	silent := slog.New(slog.DiscardHandler)
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := mechanism{memory.New(&memory.Kernel{}), pick(r, "nftables", "iptables", "ipvs")}
		b := must.OK(newBalancer(dataplane.New(m, nil), silent))(t) // its monitor does not run
		for range 3 {
			wanted := randomFile(r)
			text := fmt.Sprintf("seed %d, %s:\n%s", seed, m.name, must.OK(wanted.Encode())(t))
			f, err := loaded(t, wanted)
			if err == nil {
				err = refusals(f, m.name, nil, inEmpty(m.Check))
			}
			was, state := b.file, b.state
			if f != nil {
				took := b.take(t.Context(), f, randomVerdicts(r, f))
				if len(was.Services) > 0 && f.Timeouts != was.Timeouts {
					require.ErrorContains(t, took, "timeouts: cannot change", text)
					continue
				}

				require.Equal(t, err == nil, took == nil, "%v, %v: %s", err, took, text)
				err = took
			}

			if err == nil {
				right++
				requireReachable(t, r, b, m, text)
				continue
			}

			wrong++
			require.Same(t, was, b.file, text)
			require.Equal(t, state, b.state, text)
			for line := range strings.SplitSeq(err.Error(), "\n") {
				require.Regexp(t, namesField, line, text)
			}
		}
	}

	t.Logf("%d files were right, %d wrong", right, wrong)
	require.Greater(t, right, 300)
	require.Greater(t, wrong, 300)
}

func randomVerdicts(r *rand.Rand, f *config.File) map[backendKey]checks.State {
	out := map[backendKey]checks.State{}
	for _, s := range f.Services {
		for _, b := range s.Backends {
			out[backendKey{s.Name, b.Address}] = pick(r, checks.Unknown, checks.Up, checks.Down)
		}
	}

	return out
}

// requireReachable requires that the engine takes the balancer's state, and other states that can
// result from its checks, in any order.
func requireReachable(t *testing.T, r *rand.Rand, b *balancer, m mechanism, text string) {
	t.Helper()
	for i := range 12 {
		verdicts := map[checks.Target]checks.State{}
		share := r.IntN(11)
		s := must.OK(b.file.State(func(s *config.Service, e *config.Backend) bool {
			return backendState(s, e, func(t checks.Target) checks.State {
				if verdicts[t] == checks.Unknown {
					verdicts[t] = checks.Down
					if r.IntN(10) < share {
						verdicts[t] = checks.Up
					}
				}

				return verdicts[t]
			}) == checks.Up
		}))(t)
		if i == 0 {
			s = b.state
		}
		require.NoError(t, s.Validate(), text)
		require.NoError(t, inEmpty(m.Check)(s), text)
		result, err := b.engine.Apply(t.Context(), s)
		require.NoError(t, err, text)
		require.Empty(t, errors.Join(refusedOf(result)...), text)
		held := map[string]bool{}
		for f := range result.Changes.New.Frontends() {
			held[f.Service.Name.Name] = true
		}
		require.Len(t, held, len(b.file.Services), text)
	}
}

func refusedOf(r *dataplane.Result) (errs []error) {
	for _, f := range r.Refused {
		errs = append(errs, f.Err)
	}
	return errs
}
