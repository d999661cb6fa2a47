package dataplanetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/servicemodel"
)

// Obstacles tests a backend on the machines, and with the configurations and other programs, that
// its fields describe.
type Obstacles struct {
	// Machine returns the backend for a machine of its own.
	Machine func() FaultyBackend
	// Default opens the backend with its default configuration, in the network namespace of the
	// caller.
	Default func() (backends.Backend, error)
	// Faked says that a part of the kernel is a fake: it checks no permissions, and forwards no
	// packets.
	Faked bool
	// Instance is the name of the instance in records of the log.
	Instance string
	// Needs is an expression, match or target of nf_tables without which the backend has no chains
	// of a family.
	Needs string
	// Crowded are tables, such as "ip filter", that get 50,000 chains of another program.
	Crowded []string
	// Culprits are commands that change objects of the backend ([backends.Blamer]).
	Culprits []string
	// Layouts are instances that programs with other layouts have left: see [Upgraded].
	Layouts []Layout
}

// Run tests the backend with each obstacle, in a parallel subtest with the obstacle's name.
func (o *Obstacles) Run(t *testing.T) {
	for _, obstacle := range []struct {
		name  string
		meets bool
		run   func(t *testing.T, under FaultyBackend)
	}{
		{"deprived", !o.Faked, func(t *testing.T, under FaultyBackend) {
			Deprived(t, under.Backend)
		}},
		{"lacking", !o.Faked, lacking},
		{"without a family", o.Needs != "", o.withoutFamily},
		{"in parts", true, inParts},
		{"crowded", true, o.crowded},
		{"witnessed", true, o.witnessed},
		{"upgraded", len(o.Layouts) > 0, func(t *testing.T, under FaultyBackend) {
			Upgraded(t, under.Backend, o.Layouts...)
		}},
		{"logged", true, o.logged},
		{"by default", o.Default != nil, o.byDefault},
		{"opening fails", true, openingFails},
	} {
		if obstacle.meets {
			t.Run(obstacle.name, func(t *testing.T) {
				t.Parallel()
				under := o.Machine()
				under.need(t)
				obstacle.run(t, under)
			})
		}
	}
}

// openingFails requires that a failure to open leaves nothing open.
func openingFails(t *testing.T, under FaultyBackend) {
	ns := under.namespace(t)
	rawnltest.FailEachOpen(t, func() (io.Closer, error) { return under.Open(ns.NetNS()) })
}

// logged requires that each commit writes a log record with its cost.
func (o *Obstacles) logged(t *testing.T, under FaultyBackend) {
	f := newFaulted(t, under)
	var log bytes.Buffer
	b := opened(under.OpenWith(rawnl.Config{NetNS: f.ns.NetNS(), Logger: slog.New(
		slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}))(t)
	r := ok(settled(dataplane.New(b, nil).Apply(t.Context(), f.to)))(t)
	want := fmt.Sprintf("level=DEBUG msg=committed backend=%s instance=%s messages=%d bytes=%d "+
		"duration=", b.Name(), o.Instance, r.Stats.Messages, r.Stats.Bytes)
	if !strings.Contains(log.String(), want) {
		t.Errorf("want a record with %q, the log is\n%s", want, &log)
	}
}

// byDefault requires that the default configuration is the one of the backend under test.
func (o *Obstacles) byDefault(t *testing.T, under FaultyBackend) {
	f := newFaulted(t, under)
	must(t, f.ns.Do(func() error {
		b, err := o.Default()
		if err != nil {
			return err
		}
		_, err = settled(dataplane.New(b, nil).Apply(t.Context(), f.to))
		return errors.Join(err, b.Close())
	}))

	must(t, f.holds(t.Context(), f.to))
}

// withoutFamily applies services on a kernel that cannot have chains of a family. Services of the
// other family still work, and so do the addresses that dual-stack services have in the other
// family. The result names the missing family.
func (o *Obstacles) withoutFamily(t *testing.T, under FaultyBackend) {
	for i, proto := range []uint8{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		lacks := servicemodel.FamilyOf(clusterIP[i])
		f := newFaulted(t, under)
		b := opened(under.OpenWith(rawnl.Config{NetNS: f.ns.NetNS(),
			Wrap: func(s rawnl.Socket) rawnl.Socket {
				return rawnltest.Without(s, proto, o.Needs)
			}}))(t)
		e, node := dataplane.New(b, nil), f.to.Node()
		node.ServiceCIDRs = prefixes(netnstest.Net.ServiceCIDRv4, netnstest.Net.ServiceCIDRv6)
		single := web(named("single", clusterIP2), func(s *servicemodel.Service) {
			s.ClusterIPs = s.ClusterIPs[:1]
		})
		s := state(node, web(externalLocal, func(s *servicemodel.Service) {
			s.HealthCheckNodePort = 32000
		}), nil).WithService(single)
		for _, host := range []string{"pod1", "pod2", "pod3"} {
			// the second apply knows, the reading before the third asks again
			s = s.WithEndpoints(web().Name, eps(host))
			r := ok(settled(e.Apply(t.Context(), s)))(t)
			if len(r.Refused) != 1 || r.Refused[0].Family != lacks ||
				!errors.Is(r.Refused[0].Err, backends.ErrUnsupported) ||
				!strings.Contains(r.Refused[0].Err.Error(), o.Needs) {
				t.Errorf("refused without %v: %v", lacks, r.Refused)
			}

			e.Resync()
		}

		trace := e.Status().Trace(servicemodel.Packet{Src: netip.AddrPortFrom(nodeIP2[0], 1),
			Dst: netip.AddrPortFrom(clusterIP[i], servicePort), Protocol: servicemodel.TCP},
			servicemodel.Locality{}).String()
		why := fmt.Sprintf("refused      %v: %s cannot", lacks, b.Name())
		if !strings.Contains(trace, why) || strings.Contains(trace, "the service that has") {
			t.Errorf("want %q, got\n%s", why, trace)
		}
		node.OnlyFamily = servicemodel.FamilyOf(clusterIP[1-i])
		must(t, f.holds(t.Context(), s.WithNode(node)))
		if i := ok(b.Integrity(t.Context()))(t); i != backends.Intact {
			t.Errorf("without %v: %v", lacks, i)
		}
	}
}
