package ipvs_test

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/ipvs"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// handEdits are edits of our objects that an administrator can make. MARK stands for the mark of a
// virtual server. TestDamageIsNoticedAndRepaired has more edits of the companion.
var handEdits = []string{
	"ipvsadm -C",
	"ipvsadm -D -t 10.96.0.10:80",
	"ipvsadm -D -t [fd00:10:96::10]:80",
	"ipvsadm -D -t 192.0.2.10:30080",
	"ipvsadm -D -f MARK",
	"ipvsadm -d -t 10.96.0.10:80 -r 10.244.1.2:8080",
	"ipvsadm -d -f MARK -r 10.244.1.1:8080",
	"ipvsadm -a -t 10.96.0.10:80 -r 10.244.9.9:8080 -m",
	"ipvsadm -e -t 10.96.0.10:80 -r 10.244.1.2:8080 -m -w 7",
	"ipvsadm -e -t 10.96.0.10:80 -r 10.244.1.2:8080 -m -w 0",
	"ipvsadm --set 60 60 60",
	"sysctl net.ipv4.ip_forward=0",
	"sysctl net.ipv4.vs.conntrack=0",
	"sysctl net.ipv4.vs.expire_nodest_conn=0",
	"sysctl net.ipv4.vs.expire_quiescent_template=0",
	"sysctl net.ipv4.conf.all.arp_ignore=0",
	"ip link delete kernlb0",
	"ip link set kernlb0 down",
	"ip address delete 10.96.0.10/32 dev kernlb0",
	"ip address delete fd00:10:96::10/128 dev kernlb0",
	"ip address flush dev kernlb0",
	"ip rule delete priority 107",
	"ip -6 rule delete priority 107",
	"ip route flush table 1795224733",
	"ip -6 route flush table 1795224733",
	"nft flush ruleset",
	"nft delete table ip kernlb-ipvs",
	"nft delete element ip kernlb-ipvs services { 10.96.0.10 . tcp . 80 }",
	"nft flush set ip kernlb-ipvs version",
}

// A running program notices edits by hand, and repairs them. The log has the delay.
func TestKernelRunPutsEditsByHandRight(t *testing.T) {
	needIPVS(t)
	p := newPlace(t)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	for _, edit := range handEdits {
		t.Run(edit, func(t *testing.T) {
			p.t = t
			e := dataplane.New(p.backend, &dataplane.Config{Logger: log})
			ok(e.Apply(t.Context(), editedState()))(t)
			want := p.all()
			stop := dataplanetest.RunEngine(t, e, editedState())
			start := time.Now()
			p.edit(edit)
			require.Eventually(t, func() bool {
				return e.Status().Totals.Repairs > 0
			}, time.Minute, time.Millisecond)
			t.Logf("put right %d ms after it was begun", time.Since(start).Milliseconds())
			failures := e.Status().Totals.Failures // before an apply is interrupted
			stop()
			require.Equal(t, want, p.all())
			require.Zero(t, failures)
		})
	}
}

// editedState uses every kind of object.
func editedState() sm.State {
	svc := web(func(s *sm.Service) {
		s.LoadBalancerIPs = []sm.LoadBalancerIP{
			{Addr: netip.MustParseAddr("203.0.113.10")}}
		s.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		s.ExternalTrafficPolicy = sm.PolicyLocal
	})
	var l []sm.Endpoint
	for i, a := range []string{"10.244.1.1", "10.244.1.2", "fd00:10:244::1", "fd00:10:244::2"} {
		l = append(l, sm.Endpoint{Addr: netip.MustParseAddr(a),
			Node:  []string{"this", "other"}[i%2],
			Ports: []sm.EndpointPort{{Protocol: sm.TCP, Port: 8080}}})
	}

	return sm.State{}.WithNode(sm.Node{Name: "this"}).WithService(svc).WithEndpoints(svc.Name, l)
}

// place is a network namespace with a backend that uses every feature.
type place struct {
	t       *testing.T
	ns      *netnstest.NS
	backend backends.Backend
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{t: t, ns: nstest.New(t)}
	p.run("ip link set lo up")
	p.run("ip address add 192.0.2.10/32 dev lo")
	p.backend = ok(ipvs.New(&ipvs.Config{NetNS: p.ns.NetNS(), Device: testDevice, StrictARP: true,
		Timeouts: ipvs.Timeouts{TCP: time.Hour, TCPFin: time.Minute, UDP: 2 * time.Minute}}))(t)
	t.Cleanup(func() { p.backend.Close() })
	return p
}

func (p *place) run(command string) string {
	p.t.Helper()
	return nstest.Run(p.t, p.ns, command)
}

func (p *place) exec(args ...string) string {
	p.t.Helper()
	return nstest.Exec(p.t, p.ns, "", args...)
}

func (p *place) edit(command string) {
	p.t.Helper()
	if strings.Contains(command, "MARK") {
		_, rest, _ := strings.Cut(p.run("ipvsadm -Ln"), "FWM  ")
		text, _, _ := strings.Cut(rest, " ")
		mark, err := strconv.ParseInt(text, 10, 64) // ipvsadm parses it as a signed number
		require.NoError(p.t, err)
		command = strings.Replace(command, "MARK", fmt.Sprint(uint32(mark)), 1)
	}

	p.run(command)
}

// all returns all contents of the kernel, without the version, and sorted where the order has no
// meaning.
func (p *place) all() []string {
	p.t.Helper()
	tables := strings.SplitAfter(p.run("nft list ruleset"), "\n}\n")
	slices.Sort(tables)
	before, rest, _ := strings.Cut(strings.Join(tables, ""), "set version {")
	_, after, _ := strings.Cut(rest, "}\n")
	lines := strings.Split(p.exec("sh", "-c", `ipvsadm -Sn; ipvsadm -Ln --timeout
ip rule; ip -6 rule
ip route show table 1795224733; ip -6 route show table 1795224733
ip -o address show dev kernlb0 | cut -d: -f2
cd /proc/sys/net/ipv4; grep . ip_forward vs/conntrack vs/expire* conf/all/arp*`), "\n")
	slices.Sort(lines)
	return append(lines, before+after)
}
