package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/ipvsfake"
	"github.com/kernlb/kernlb/internal/test/nstest"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// rig is a network namespace with a fake IPVS. Everything else is the kernel's own. The fake
// forwards nothing.
type rig struct {
	t    *testing.T
	ns   *netnstest.NS
	fake *ipvsfake.Kernel
}

// rigSysctls are the sysctls that backends of a rig set, because the kernel may have no IPVS
// sysctls.
var rigSysctls = map[string]string{sysctlForward: "1", "net/ipv4/conf/all/arp_ignore": "1"}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, ns: nstest.New(t), fake: ipvsfake.New()}
	for name := range rigSysctls {
		r.setSysctl(name, "0")
	}
	return r
}

// backend opens a backend without any memory.
func (r *rig) backend(cfg ...Config) *backend {
	r.t.Helper()
	c := append(cfg, Config{})[0]
	c.NetNS = r.ns.NetNS()
	b := ok(openOn(r.fake, c, rawnl.Config{}))(r.t)
	r.t.Cleanup(func() { b.Close() })
	return b
}

// openOn opens a backend on a fake IPVS, with connections of a configuration. Its limit is the
// limit of the connection to nf_tables.
func openOn(fake *ipvsfake.Kernel, c Config, with rawnl.Config) (*backend, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	b := newBackend(c)
	b.kernel.kind = "bridge"
	for name := range sysctlValues(true) {
		delete(b.pl.tunables, name)
	}
	maps.Copy(b.pl.tunables, rigSysctls)
	k := &b.kernel
	if k.vs, err = fake.Dial(context.Background(), &rawnl.Config{Wrap: with.Wrap}); err != nil {
		return nil, err
	}
	err = k.openNetwork(&c)
	k.references.file = "" // the references to a loaded module do not concern the fake
	k.outlines.read = fake.Sockopt
	if err == nil && (with.Wrap != nil || with.Limit > 0) {
		k.nf.Close()
		with.NetNS = c.NetNS
		k.nf, err = rawnl.Dial(&with)
	}

	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (r *rig) engine(cfg ...Config) *dataplane.Engine {
	return dataplane.New(r.backend(cfg...), nil)
}

func (r *rig) run(command string) string {
	r.t.Helper()
	return nstest.Run(r.t, r.ns, command)
}

func (r *rig) sysctl(name string) string {
	r.t.Helper()
	return ok(r.ns.Sysctl(name))(r.t)
}

func (r *rig) setSysctl(name, value string) {
	r.t.Helper()
	require.NoError(r.t, r.ns.SetSysctl(name, value))
}

// servers returns the fake's content: a line for each virtual server and destination.
func (r *rig) servers() []string {
	r.t.Helper()
	c := ok(r.fake.Dial(r.t.Context(), nil))(r.t)
	defer c.Close()
	all := ok(c.Services(r.t.Context()))(r.t)
	var l []string
	for _, s := range all {
		l = append(l, fmt.Sprintf("%v %s %v", s.ServiceKey, s.Scheduler, s.Timeout))
		dests := ok(c.Destinations(r.t.Context(), s.ServiceKey))(r.t)
		for _, d := range dests {
			l = append(l, fmt.Sprintf("%v -> %v %d", s.ServiceKey, d.DestinationKey, d.Weight))
		}
	}

	return l
}

// state returns the kernel's content, without the version.
func (r *rig) state() []string {
	r.t.Helper()
	tables := strings.SplitAfter(r.run("nft list ruleset"), "\n}\n")
	slices.Sort(tables) // a recreated table is listed last
	l := r.servers()
	inVersion := false
	for line := range strings.Lines(strings.Join(tables, "")) {
		inVersion = strings.Contains(line, "set version {") || inVersion &&
			!strings.HasPrefix(line, "\t}")
		if !inVersion {
			l = append(l, line)
		}
	}

	for _, command := range []string{"ip rule", "ip -6 rule", "ip route show table all",
		"ip -6 route show table all", "ip address show up"} { // a VM has tunnels that are down
		l = append(l, r.run(command))
	}

	return l
}

// apply applies a state, and requires that a second apply in a new backend writes nothing.
func (r *rig) apply(e *dataplane.Engine, s sm.State) *dataplane.Result {
	r.t.Helper()
	res := ok(e.Apply(r.t.Context(), s))(r.t)
	again := ok(r.engine().Apply(r.t.Context(), s))(r.t)
	require.Empty(r.t, again.Drift)
	require.Zero(r.t, again.Stats.Messages)
	return res
}

func TestRigAppliesAndCleansUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	before := r.state()
	e := r.engine()
	res := r.apply(e, rigState([]string{"10.244.1.1", "10.244.2.2"}))
	require.Positive(t, res.Stats.Messages)
	r.apply(e, rigState([]string{"10.244.1.1", "10.244.2.3"}))
	r.apply(e, rigState([]string{"10.244.1.1"}, restrictedTo("198.51.100.0/24", "2001:db8::/32")))
	r.apply(e, rigState([]string{"10.244.1.1"}, restrictedTo("2001:db8::/32"))) // none of IPv4
	r.apply(e, rigState([]string{"10.244.1.1"}, restrictedTo()))
	r.apply(e, sm.State{}.WithNode(goldenNode()))
	cleanUp(t, e)
	require.Equal(t, before, r.state())
	require.Equal(t, "0", r.sysctl(sysctlForward))
}

// applied applies a state with an engine.
func applied(t *testing.T, e *dataplane.Engine, s sm.State) *dataplane.Result {
	t.Helper()
	return ok(e.Apply(t.Context(), s))(t)
}

// observation returns the observation of a backend.
func observation(t *testing.T, b *backend) *backends.Observation {
	t.Helper()
	return ok(b.Observe(t.Context(), nil))(t)
}

// cleaner is an engine or a backend.
type cleaner interface {
	Cleanup(ctx context.Context) (backends.Stats, error)
}

func cleanUp(t *testing.T, c cleaner) backends.Stats {
	t.Helper()
	return ok(c.Cleanup(t.Context()))(t)
}

func requireIntegrity(t *testing.T, b *backend, want backends.Integrity, why ...any) {
	t.Helper()
	i := ok(b.Integrity(t.Context()))(t)
	require.Equal(t, want, i, why...)
}

// rigWithBackend returns a rig, and a backend in it.
func rigWithBackend(t *testing.T, cfg ...Config) (*rig, *backend) {
	t.Helper()
	r := newRig(t)
	return r, r.backend(cfg...)
}

// commit commits a state with a new backend.
func (r *rig) commit(s sm.State) *backend {
	r.t.Helper()
	b, c := r.change(s)
	ok(b.Commit(r.t.Context(), c))(r.t)
	return b
}
