package ipvs

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	sm "github.com/kernlb/kernlb/servicemodel"
)

const sysctlARP = "net/ipv4/conf/all/arp_ignore"

// reliances are actions before a cleanup, and the tunables after it.
var reliances = []struct {
	name    string
	between func(*rig)
	cleanup Config
	forward string // after the cleanup
	arp     string
	tcp     time.Duration
	since   string
}{
	{"nobody", func(*rig) {}, shorter, "0", "0", fresh.TCP, ""},
	{"it does not say what was set", func(*rig) {}, Config{}, "0", "0", fresh.TCP, ""},
	{"somebody forwards", func(r *rig) {
		r.run("nft add table inet firewall")
		r.run("nft add chain inet firewall forward { type filter hook forward priority 0 ; }")
	}, shorter, "1", "0", fresh.TCP, "others have rules about forwarded packets"},
	{"rules about other packets", func(r *rig) {
		r.run("nft add table inet firewall")
		r.run("nft add chain inet firewall forward")
		r.run("nft add chain inet firewall input { type filter hook input priority 0 ; }")
		r.run("nft add table bridge switch")
		r.run("nft add chain bridge switch forward { type filter hook forward priority 0 ; }")
	}, shorter, "0", "0", fresh.TCP, ""},
	{"iptables", func(r *rig) { r.run("iptables-legacy -t filter -L") }, shorter, "1", "0",
		fresh.TCP, "others have rules about forwarded packets"},
	{"set again by somebody", func(r *rig) {
		r.setSysctl(sysctlARP, "2")
		require.NoError(r.t, r.client().SetTimeouts(r.t.Context(),
			ipvsnl.Timeouts{TCP: time.Minute}))
	}, shorter, "0", "2", time.Minute, "somebody else has set it since"},
	{"restored by somebody", func(r *rig) { r.setSysctl(sysctlARP, "0") }, shorter, "0", "0",
		fresh.TCP, ""},
	{"virtual servers of others", func(r *rig) {
		r.addForeign(ipvsnl.AddressService(ipvsnl.TCP, netip.MustParseAddrPort("192.0.2.99:80")))
	}, shorter, "0", "0", time.Hour, "there are virtual servers of others"},
	{"another instance", func(r *rig) {
		applied(r.t, r.engine(otherInstance), sm.State{}.WithNode(goldenNode()))
	}, shorter, "1", "1", time.Hour, "another instance needs it"},
}

var otherInstance = Config{Table: "other", Timeouts: shorter.Timeouts}

// A cleanup restores the earlier values of tunables, unless there is a sign that another program
// relies on the present values. Then it logs this. The value of a timeout that we set is not
// recorded, so a cleanup without the configuration restores the timeout.
func TestTunablesOthersRelyOnAreLeft(t *testing.T) {
	t.Parallel()
	for _, tc := range reliances {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			requireTunables := func(forward, arp string, tcp time.Duration) {
				t.Helper()
				require.Equal(t, forward, r.sysctl(sysctlForward))
				require.Equal(t, arp, r.sysctl(sysctlARP))
				now := ok(r.client().Timeouts(t.Context()))(t)
				require.Equal(t, tcp, now.TCP)
			}

			applied(t, r.engine(shorter), rigState([]string{"10.244.1.1"}))
			tc.between(r)
			var log bytes.Buffer
			tc.cleanup.Logger = slog.New(slog.NewTextHandler(&log, nil))
			cleanUp(t, r.engine(tc.cleanup))
			requireTunables(tc.forward, tc.arp, tc.tcp)
			require.Contains(t, log.String(), tc.since)
			require.Equal(t, tc.since != "", log.Len() > 0)
			if tc.name == "another instance" { // it knows the values before the first instance
				cleanUp(t, r.engine(otherInstance))
				requireTunables("0", "0", fresh.TCP)
			}
		})
	}
}

// A sysctl that is no longer wanted is restored, and forgotten.
func TestSysctlsAreRestoredWhenTheyAreNotWanted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := rigState([]string{"10.244.1.1"})
	r.apply(r.engine(), s)
	for _, damaged := range []bool{false, true} {
		b := r.backend()
		delete(b.pl.tunables, sysctlARP)
		if damaged {
			r.run("nft flush chain ip kernlb-ipvs admit")
		}
		res := applied(t, dataplane.New(b, nil), s)
		require.Contains(t, res.Drift, "sysctl "+sysctlARP+" is set, and need not be")
		require.Equal(t, "0", r.sysctl(sysctlARP))
		c, drift, err := b.kernel.readCompanion(t.Context())
		require.NoError(t, err)
		require.Empty(t, drift)
		require.Equal(t, map[string]string{sysctlForward: "0"}, c.tunables)
		r.apply(r.engine(), s)
		require.Equal(t, "1", r.sysctl(sysctlARP))
	}
}

// Every name that Kubernetes allows works, with everything that a record can contain.
func TestLongNames(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	long := strings.Repeat("x", 63)
	svc := goldenService(func(s *sm.Service) {
		s.Name = sm.Name{Namespace: long, Name: long}
		s.Ports[0].Name = long
		s.SessionAffinity = sm.SessionAffinity{ClientIP: true, Timeout: 24 * time.Hour}
		s.ExternalTrafficPolicy = sm.PolicyLocal
		s.LoadBalancerIPs = []sm.LoadBalancerIP{
			{Addr: netip.MustParseAddr("203.0.113.20")}}
		s.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		s.Ports[0].NodePort = 0
	})
	eps := goldenEndpoints("10.244.1.1", "10.244.2.2")
	for i := range eps {
		eps[i].Ports[0].Name = long
	}
	s := sm.State{}.WithNode(goldenNode()).WithService(svc).WithEndpoints(svc.Name, eps)
	r.apply(r.engine(), s)
	o := ok(r.backend().Observe(t.Context(), nil))(t)
	for fe := range o.Table.Frontends() {
		require.Len(t, fe.Service.String(), 191)
	}
}

// A foreign virtual server is reported, with the service that it blocks. If it appears after the
// check, it is a conflict.
func TestForeignVirtualServersAreReported(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t)
	s := rigState([]string{"10.244.1.1"})
	table := resolve(t, nil, s)
	o := observation(t, b)
	c := sm.Diff(o.Table, table)
	require.NoError(t, b.Check(c))
	r.addForeign(ipvsnl.AddressService(ipvsnl.TCP, netip.MustParseAddrPort("203.0.113.10:80")))
	_, err := b.Commit(t.Context(), c)
	require.ErrorIs(t, err, kernelerr.ErrConflict)

	o = observation(t, b)
	var collision *backends.CollisionError
	require.ErrorAs(t, b.Check(sm.Diff(o.Table, table)), &collision)
	require.Equal(t, backends.CollisionError{Backend: Name, Service: goldenService().Name,
		Object: "virtual server TCP 203.0.113.10:80"}, *collision)
	without := rigState([]string{"10.244.1.1"}, func(s *sm.Service) { s.ExternalIPs = nil })
	r.apply(r.engine(), without)
	require.Contains(t, r.servers(), "TCP 203.0.113.10:80 rr 0s")
}

// A refused tunable is an error, whether it is set or restored.
func TestTunablesThatAreRefused(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t)
	r.setSysctl(sysctlARP, rigSysctls[sysctlARP])
	nonsense := map[string]string{sysctlARP: "nonsense"}
	p := &plan{}
	p.network.tunables.Set = nonsense
	err := b.kernel.prepare(t.Context(), p)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, sysctlARP)
	require.ErrorIs(t, b.restoring(sysctls.Change{Restore: nonsense})(t.Context()), syscall.EINVAL)
	p.network.tunables.Set = map[string]string{"net/ipv4/there_is_none": "1", sysctlARP: "2"}
	require.NoError(t, b.kernel.prepare(t.Context(), p), "what is not there need not be set")
	require.Equal(t, "2", r.sysctl(sysctlARP))
}

// fresh has the timeouts of a new network namespace.
var fresh = ipvsnl.Timeouts{TCP: 15 * time.Minute, TCPFin: 2 * time.Minute, UDP: 5 * time.Minute}

// client returns a client of the fake IPVS.
func (r *rig) client() *ipvsnl.Client {
	r.t.Helper()
	c := ok(r.fake.Dial(r.t.Context(), nil))(r.t)
	r.t.Cleanup(func() { c.Close() })
	return c
}

// submit sends commands of another program to the fake IPVS.
func (r *rig) submit(ops ...ipvsnl.Op) {
	r.t.Helper()
	require.NoError(r.t, r.client().Submit(r.t.Context(), ops...))
}

func (r *rig) requireTimeouts(want ipvsnl.Timeouts) {
	r.t.Helper()
	t := ok(r.client().Timeouts(r.t.Context()))(r.t)
	require.Equal(r.t, want, t)
}

// shorter configures two timeouts, and leaves the timeout of UDP alone.
var shorter = Config{Timeouts: Timeouts{TCP: time.Hour, TCPFin: 30 * time.Second}}

func TestTimeoutsAreSetAndRestored(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := rigState([]string{"10.244.1.1"})
	set := ipvsnl.Timeouts{TCP: time.Hour, TCPFin: 30 * time.Second, UDP: fresh.UDP}
	e := r.engine(shorter)
	applied(t, e, s)
	r.requireTimeouts(set)

	// A new program finds the timeouts, and has nothing to do.
	res := applied(t, r.engine(shorter), s)
	require.Empty(t, res.Drift)
	require.Zero(t, res.Stats.Messages)

	// A change by another program is noticed and repaired, except for timeouts that are not
	// configured.
	require.NoError(t, r.client().SetTimeouts(t.Context(), ipvsnl.Timeouts{TCP: time.Minute,
		UDP: time.Minute}))
	res = applied(t, e, s)
	require.Equal(t, []string{"timeout tcp is 60, not 3600"}, res.Drift)
	set.UDP = time.Minute
	r.requireTimeouts(set)

	// A timeout that is no longer configured is restored, and a cleanup restores all.
	res = applied(t, r.engine(Config{Timeouts: Timeouts{TCP: time.Hour}}), s)
	require.Equal(t, []string{"timeout tcpfin is set, and need not be"}, res.Drift)
	set.TCPFin = fresh.TCPFin
	r.requireTimeouts(set)
	cleanUp(t, e)
	set.TCP = fresh.TCP
	r.requireTimeouts(set)
}

// A plan lists the values that it sets, in the languages of ip, sysctl and ipvsadm.
func TestPlansSayWhatTheySet(t *testing.T) {
	t.Parallel()
	_, b := rigWithBackend(t, shorter)
	o := observation(t, b)
	table := resolve(t, nil, rigState([]string{"10.244.1.1"}))
	c := sm.Diff(o.Table, table)
	p := ok(b.Plan(c))(t)
	require.Contains(t, p.String(), `
ip route replace local default dev lo table 1795224733
ip rule add fwmark 0xfd200000/0xfff80000 table 1795224733 priority 107
ip -6 route replace local default dev lo table 1795224733
ip -6 rule add fwmark 0xfd200000/0xfff80000 table 1795224733 priority 107
sysctl -w net/ipv4/conf/all/arp_ignore=1
sysctl -w net/ipv4/ip_forward=1
ipvsadm --set 3600 30 0
-A -t 10.96.0.10:80`)
	ok(b.Commit(t.Context(), c))(t)
	p = ok(b.Plan(sm.Diff(table, table)))(t)
	require.Empty(t, p.String())
	requireIntegrity(t, b, backends.Intact)
}

// If the companion tables are deleted, this process remembers the earlier values: for the next
// commit, after any number of readings, and for a cleanup.
func TestEarlierValuesOutliveTheirRecords(t *testing.T) {
	t.Parallel()
	s := rigState([]string{"10.244.1.1"})
	for readings := range 3 {
		r := newRig(t)
		b := r.backend()
		e := dataplane.New(b, nil)
		applied(t, e, s)
		r.run("nft flush ruleset")
		for range readings {
			ok(b.Observe(t.Context(), nil))(t)
		}
		if readings > 0 {
			applied(t, e, s)
		}
		cleanUp(t, e)
		for name := range rigSysctls {
			require.Equal(t, "0", r.sysctl(name), "%s after %d readings", name, readings)
		}
	}
}
