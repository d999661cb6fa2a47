package ipvs

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/test/nstest"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// nodeOfMany are the addresses of the node in [takeOverOf] that accept node ports. The last two are
// on a dummy device that does not belong to a balancer, like the device of NodeLocal DNSCache.
var nodeOfMany = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"),
	netip.MustParseAddr("10.0.0.53"), netip.MustParseAddr("fd00::53")}

// many returns services in both families, each with a cluster IP, an external IP, a node port and
// an endpoint. third is the third byte of their IPv4 addresses.
func many(n int, third byte, nodePorts bool) sm.State {
	s := sm.State{}.WithNode(sm.Node{Name: "this"})
	for i := range n {
		last := byte(1 + i)
		svc := &sm.Service{Name: sm.Name{Namespace: "default", Name: fmt.Sprint("s", i)},
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, third, last}),
				netip.AddrFrom16([16]byte{0xfd, 0, 13: third, 15: last})},
			ExternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, third, last})},
			Ports:       []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}}
		if nodePorts {
			svc.Ports[0].NodePort = uint16(30000 + i)
		}
		s = s.WithService(svc).WithEndpoints(svc.Name, goldenEndpoints("10.244.1.1", "fd01::1"))
	}

	return s
}

// holders bind the addresses of n services, as the previous balancer does.
var holders = map[string]func(r *rig, n int, s sm.State){
	"no other balancer": func(*rig, int, sm.State) {},
	"kube-ipvs0":        func(r *rig, _ int, s sm.State) { r.hold("kube-ipvs0", s) },
	"kube-dummy-if":     func(r *rig, _ int, s sm.State) { r.hold("kube-dummy-if", s) },
	"another instance": func(r *rig, n int, _ sm.State) {
		applied(r.t, r.engine(Config{Table: "other", Device: "other0"}), many(n, 1, false))
	},
}

// hold binds the addresses of services to a device.
func (r *rig) hold(device string, s sm.State) {
	var batch strings.Builder
	fmt.Fprintf(&batch, "link add %s type bridge\n", device)
	for svc := range s.Services() {
		for _, a := range append(svc.ClusterIPs, svc.ExternalIPs...) {
			fmt.Fprintf(&batch, "address add %v/%d dev %s\n", a, a.BitLen(), device)
		}
	}

	nstest.Exec(r.t, r.ns, batch.String(), "ip", "-batch", "-")
}

// takeOverOf counts the cost of a take-over of n services, and the remaining objects: virtual
// servers, changes of IPVS, messages, and requests to rtnetlink. It also counts them after the
// other balancer's device was removed, and for a clean-up.
func takeOverOf(t *testing.T, n int, holder string, theirs bool, cfg Config) map[string]int {
	t.Helper()
	r, s := newRig(t), many(n, 0, true)
	r.run("ip link add v type veth peer name w")
	r.run("ip link add nodelocaldns type bridge")
	r.run("ip address add 169.254.20.10/32 dev nodelocaldns")
	for i, a := range nodeOfMany {
		r.run(fmt.Sprintf("ip address add %v/%d dev %s nodad", a, a.BitLen(),
			[]string{"v", "nodelocaldns"}[i/2]))
	}

	holders[holder](r, n, s)
	before := len(r.fake.Keys())
	if theirs {
		for svc := range s.Services() {
			for _, a := range append(svc.ClusterIPs, svc.ExternalIPs...) {
				r.addForeign(ipvsnl.AddressService(ipvsnl.TCP, netip.AddrPortFrom(a, 80)))
			}
			for _, a := range nodeOfMany {
				r.addForeign(ipvsnl.AddressService(ipvsnl.TCP,
					netip.AddrPortFrom(a, svc.Ports[0].NodePort)))
			}
		}
	}

	r.fake.ResetLog()

	b := r.backend(cfg)
	counts, requests := map[string]int{}, 0
	b.kernel.links.Wrap(func(_ bool, do func() error) error { requests++; return do() })
	count := func(step string, messages int) {
		counts[step+": virtual servers"] = len(r.fake.Keys()) - before
		counts[step+": changes of IPVS"] = len(r.fake.Log())
		counts[step+": messages"] = messages
		counts[step+": requests to rtnetlink"] = requests
		requests = 0
		r.fake.ResetLog()
	}

	e := dataplane.New(b, nil)
	count("take over", applied(t, e, s).Stats.Messages)

	for _, device := range []string{"kube-ipvs0", "kube-dummy-if"} {
		if holder == device {
			r.run("ip link del " + device)
		}
	}

	count("the device is gone", applied(t, e, s).Stats.Messages)
	count("clean up", cleanUp(t, e).Messages)
	return counts
}

// Whichever balancer held the services before, the cost of a take-over is proportional to their
// number: no service adds to the cost of another service, in either family.
func TestATakeOverIsProportional(t *testing.T) {
	t.Parallel()
	for holder := range holders {
		for _, theirs := range []bool{false, true} {
			for _, device := range []string{"", rigDevice} {
				name := fmt.Sprintf("%s, taken over %v, device %q", holder, theirs, device)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					cfg := Config{TakeOver: theirs, Device: device}
					one := takeOverOf(t, 20, holder, theirs, cfg)
					two := takeOverOf(t, 40, holder, theirs, cfg)
					four := takeOverOf(t, 80, holder, theirs, cfg)
					for what := range four {
						assert.LessOrEqual(t, four[what]-two[what], 8+2*max(0, two[what]-one[what]),
							"%s: %d, %d, %d", what, one[what], two[what], four[what])
					}

					require.Equal(t, 80*(3+len(nodeOfMany)), four["take over: virtual servers"])
					require.Zero(t, four["clean up: virtual servers"])
				})
			}
		}
	}
}
