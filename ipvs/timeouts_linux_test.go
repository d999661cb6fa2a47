package ipvs

import (
	"net/netip"
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
	c, err := r.fake.Dial(r.t.Context(), nil)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { c.Close() })
	return c
}

func (r *rig) requireTimeouts(want ipvsnl.Timeouts) {
	r.t.Helper()
	t, err := r.client().Timeouts(r.t.Context())
	require.NoError(r.t, err)
	require.Equal(r.t, want, t)
}

// shorter configures two timeouts, and leaves that of UDP as it is.
var shorter = Config{Timeouts: Timeouts{TCP: time.Hour, TCPFin: 30 * time.Second}}

func TestTimeoutsAreSetAndRestored(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := rigState([]string{"10.244.1.1"})
	set := ipvsnl.Timeouts{TCP: time.Hour, TCPFin: 30 * time.Second, UDP: fresh.UDP}
	e := r.engine(shorter)
	_, err := e.Apply(t.Context(), s)
	require.NoError(t, err)
	r.requireTimeouts(set)

	// A new program finds them, and has nothing to do.
	res, err := r.engine(shorter).Apply(t.Context(), s)
	require.NoError(t, err)
	require.Empty(t, res.Drift)
	require.Zero(t, res.Messages)

	// What somebody sets is noticed and repaired, but for what is left to the kernel.
	require.NoError(t, r.client().SetTimeouts(t.Context(), ipvsnl.Timeouts{TCP: time.Minute,
		UDP: time.Minute}))
	res, err = e.Apply(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, []string{"timeout tcp is 60, not 3600"}, res.Drift)
	set.UDP = time.Minute
	r.requireTimeouts(set)

	// One that is not configured any more is what it was, and so are all after a cleanup.
	res, err = r.engine(Config{Timeouts: Timeouts{TCP: time.Hour}}).Apply(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, []string{"timeout tcpfin is set, and need not be"}, res.Drift)
	set.TCPFin = fresh.TCPFin
	r.requireTimeouts(set)
	_, err = e.Cleanup(t.Context())
	require.NoError(t, err)
	set.TCP = fresh.TCP
	r.requireTimeouts(set)
}

// A timeout is not restored if there is a sign that somebody relies on what it is. What it was set
// to is not recorded, so a cleanup that is not told what it should be restores it.
func TestTimeoutsOthersRelyOnAreLeft(t *testing.T) {
	t.Parallel()
	other := Config{Table: "other", Timeouts: shorter.Timeouts}
	for _, tc := range []struct {
		name    string
		between func(*rig)
		cleanup Config
		want    time.Duration // of TCP
	}{
		{"nobody", func(*rig) {}, shorter, fresh.TCP},
		{"it does not say what was set", func(*rig) {}, Config{}, fresh.TCP},
		{"set again by somebody", func(r *rig) {
			require.NoError(r.t, r.client().SetTimeouts(r.t.Context(),
				ipvsnl.Timeouts{TCP: time.Minute}))
		}, shorter, time.Minute},
		{"virtual servers of others", func(r *rig) {
			var b ipvsnl.Batch
			b.NewService(ipvsnl.Service{Scheduler: "rr", ServiceKey: ipvsnl.AddressService(
				ipvsnl.TCP, netip.MustParseAddrPort("192.0.2.99:80"))})
			require.NoError(r.t, r.client().Submit(r.t.Context(), &b))
		}, shorter, time.Hour},
		{"another instance", func(r *rig) {
			_, err := r.engine(other).Apply(r.t.Context(),
				servicemodel.State{}.WithNode(goldenNode()))
			require.NoError(r.t, err)
		}, shorter, time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			_, err := r.engine(shorter).Apply(t.Context(), rigState([]string{"10.244.1.1"}))
			require.NoError(t, err)
			tc.between(r)
			_, err = r.engine(tc.cleanup).Cleanup(t.Context())
			require.NoError(t, err)
			now, err := r.client().Timeouts(t.Context())
			require.NoError(t, err)
			require.Equal(t, tc.want, now.TCP)
			if tc.name == "another instance" { // it knows what they were before the first
				_, err = r.engine(other).Cleanup(t.Context())
				require.NoError(t, err)
				r.requireTimeouts(fresh)
			}
		})
	}
}

// A plan says what it sets, in the languages of ip, sysctl and ipvsadm.
func TestPlansSayWhatTheySet(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.backend(shorter)
	o, err := b.Observe(t.Context(), nil)
	require.NoError(t, err)
	table, err := servicemodel.Resolve(nil, rigState([]string{"10.244.1.1"}))
	require.NoError(t, err)
	c := servicemodel.Diff(o.Table, table)
	p, err := b.Plan(c)
	require.NoError(t, err)
	require.Contains(t, p.String(), `
ip route replace local default dev lo table 1795224733
ip rule add fwmark 0x40000000/0x40000000 table 1795224733 priority 107
ip -6 route replace local default dev lo table 1795224733
ip -6 rule add fwmark 0x40000000/0x40000000 table 1795224733 priority 107
sysctl -w net/ipv4/conf/all/arp_ignore=1
sysctl -w net/ipv4/ip_forward=1
ipvsadm --set 3600 30 0
-A -t 10.96.0.10:80`)
	_, err = b.Commit(t.Context(), c)
	require.NoError(t, err)
	p, err = b.Plan(servicemodel.Diff(table, table))
	require.NoError(t, err)
	require.Empty(t, p.String())
	i, err := b.Integrity(t.Context())
	require.NoError(t, err)
	require.Equal(t, dataplane.Intact, i)
}
