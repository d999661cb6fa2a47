package dataplanetest

import (
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// lack is a feature that the machine of a node lacks, or has in an unusual form.
type lack struct {
	name string
	// sysctls are set before anything is applied. Then sh runs script.
	sysctls map[string]string
	script  string
	only    servicemodel.Family // the families that are left; 0 for all
	// readOnly makes /proc/sys read only while states are applied.
	readOnly bool
	// localhost asks for node ports at loopback addresses. This needs a sysctl that cannot be
	// written; fails names it, and the errors of applies must name it, too.
	localhost bool
	fails     string
	// from are the hosts that must reach services nevertheless.
	from []string
}

var everybody = []string{"pod1", "node", "outside1"}

var lacks = []lack{
	{name: "IPv6 is disabled", only: servicemodel.IPv4, from: everybody,
		sysctls: map[string]string{"net/ipv6/conf/all/disable_ipv6": "1"}},
	{name: "any address can be bound", from: everybody, sysctls: map[string]string{
		"net/ipv4/ip_nonlocal_bind": "1", "net/ipv6/ip_nonlocal_bind": "1"}},
	{name: "the reverse path filter is strict", from: everybody, sysctls: map[string]string{
		"net/ipv4/conf/all/rp_filter": "1", "net/ipv4/conf/default/rp_filter": "1"}},
	{name: "INPUT and FORWARD drop, apart from answers", from: []string{"node"}, script: firewall},
	{name: "sysctls are read only", from: everybody, readOnly: true},
	{name: "sysctls are read only, and one is needed", from: everybody, readOnly: true,
		localhost: true, fails: "route_localnet"},
	{name: "sysctls are read only, and the one that is needed is on", from: everybody,
		readOnly: true, localhost: true,
		sysctls: map[string]string{"net/ipv4/conf/all/route_localnet": "1"}},
	{name: "a VPN marks packets", from: everybody, script: vpn("0xca6c")},
	{name: "another VPN marks packets", from: everybody, script: vpn("0x6d6f6c65")},
}

// firewall lets in answers to the node, and forwards nothing. Backends do not open it.
const firewall = `nft -f - << END
table inet firewall {
	chain input {
		type filter hook input priority 0; policy drop;
		ct state established,related accept
		meta l4proto ipv6-icmp accept
	}
	chain forward {
		type filter hook forward priority 0; policy drop;
		ct state established,related accept
	}
}
END`

// vpn marks all packets before backends see them.
func vpn(mark string) string {
	return `nft -f - << END
table inet vpn {
	chain prerouting { type filter hook prerouting priority -290; meta mark set ` + mark + `; }
	chain output { type route hook output priority -290; meta mark set ` + mark + `; }
}
END`
}

// lacking applies services on machines that lack a feature or have it in an unusual form: IPv6, a
// firewall that lets packets pass, writable sysctls. Services that do not need the missing feature
// must be in the kernel in time. All other services must be refused by name. Clients must reach the
// services on such machines, even if applies fail because a sysctl that the node needs is
// read-only.
func lacking(t *testing.T, under FaultyBackend) {
	for _, l := range lacks {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath("nft"); err != nil && l.script != "" {
				t.Skip("nft is not installed (Debian package nftables)")
			}
			if l.localhost && !under.Loopback {
				t.Skip("the backend publishes nothing at loopback addresses")
			}
			w := under.network(t)
			l.run(t, w)
		})
	}
}

func (l *lack) run(t *testing.T, w *world) {
	for key, value := range l.sysctls {
		must(t, w.Node.NS.SetSysctl(key, value))
	}
	if l.script != "" {
		w.script(t, l.script)
	}
	node := podCIDRs(thisNode())
	node.LocalhostNodePorts = l.localhost
	s := servicemodel.State{}.WithNode(node)
	e := dataplane.New(w.backend, nil)
	for i, f := range []servicemodel.Family{servicemodel.IPv4, servicemodel.IPv6} {
		svc := web(named(f.String(), [2]netip.Addr{cluster.addrs[i], cluster.addrs[i]}))
		svc.ClusterIPs, svc.Ports = svc.ClusterIPs[:1], svc.Ports[:1]
		s = and(s, svc, eps("pod2", "pod3"))
		l.apply(t, w, e, s)
	}

	for _, y := range w.ways(l.from, cluster) {
		if y.proto != servicemodel.TCP ||
			l.only != 0 && servicemodel.FamilyOf(y.to.Addr()) != l.only {
			continue
		}

		got := w.probe(y).Send(t.Context())
		if !slices.Contains(reaches("pod2", "pod3").Servers, got.Server) {
			t.Errorf("%v: %v", y, got)
		}
	}
}

// apply applies a state and judges the result.
func (l *lack) apply(t *testing.T, w *world, e *dataplane.Engine, s servicemodel.State) {
	t.Helper()
	var r *dataplane.Result
	apply := func() (err error) {
		r, err = settled(e.Apply(t.Context(), s))
		return err
	}

	do := apply
	if l.readOnly {
		do = func() error { return withReadOnlySysctls(w.Node.NS.Fd(), apply) }
	}
	start := time.Now()
	err := do()
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("it took %v", d)
	}
	switch {
	case l.fails == "" && err != nil:
		t.Fatalf("apply: %v", err)
	case l.fails != "" && (!errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), l.fails)):
		t.Fatalf("apply: want an error that names %s, got %v", l.fails, err)
	case err != nil:
		return
	}

	for _, refused := range r.Refused {
		if l.only == 0 || refused.Service.Name == l.only.String() {
			t.Errorf("refused: %v", refused)
		}
	}
}

// withReadOnlySysctls runs f on a thread that is in a network namespace and cannot write sysctls,
// as in a container. The thread ends with f.
func withReadOnlySysctls(netns int, f func() error) error {
	return onOwnThread(func() error {
		const sysctls = "/proc/sys"
		err := unix.Unshare(unix.CLONE_NEWNS)
		for _, m := range []struct {
			from, to string
			flags    uintptr
		}{
			{"", "/", unix.MS_REC | unix.MS_PRIVATE}, {sysctls, sysctls, unix.MS_BIND},
			{"", sysctls, unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY},
		} {
			if err == nil {
				err = unix.Mount(m.from, m.to, "", m.flags, "")
			}
		}

		if err == nil {
			err = unix.Setns(netns, unix.CLONE_NEWNET)
		}
		if err == nil {
			err = f()
		}
		return err
	})
}
