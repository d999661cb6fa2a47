package ipvs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// fresh are the timeouts of a new network namespace.
var fresh = ipvsnl.Timeouts{TCP: 15 * time.Minute, TCPFin: 2 * time.Minute, UDP: 5 * time.Minute}

// client returns a client of the fake IPVS.
func (r *rig) client() *ipvsnl.Client {
	r.t.Helper()
	c := ok(r.fake.Dial(r.t.Context(), nil))(r.t)
	r.t.Cleanup(func() { c.Close() })
	return c
}

func (r *rig) requireTimeouts(want ipvsnl.Timeouts) {
	r.t.Helper()
	t := ok(r.client().Timeouts(r.t.Context()))(r.t)
	require.Equal(r.t, want, t)
}

// shorter configures two timeouts, and leaves that of UDP alone.
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
	require.Zero(t, res.Messages)

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
	c := servicemodel.Diff(o.Table, table)
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
	p = ok(b.Plan(servicemodel.Diff(table, table)))(t)
	require.Empty(t, p.String())
	requireIntegrity(t, b, dataplane.Intact)
}
