package main

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/peers/serve"
	"github.com/kernlb/kernlb/servicemodel"
)

// workload has the services that bench lets the peers sync, with one TCP port and an IPv4 cluster
// IP each. Some are real, spread evenly among the others: their endpoints are pods that serve. The
// endpoints of the others are unused addresses.
type workload struct {
	services, endpoints int
	pods                []netip.Addr
}

// realServices is how many services get connections.
const realServices = 16

func (w *workload) name(i int) string { return fmt.Sprintf("service-%d", i) }

// addr is the cluster IP of service i.
func (w *workload) addr(i int) netip.Addr { return counted("10.96.0.0", i+1) }

// counted is the i-th address from base on.
func counted(base string, i int) netip.Addr {
	b := netip.MustParseAddr(base).As4()
	n := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	n += uint32(i)
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// reals are the numbers of the real services, the last service among them.
func (w *workload) reals() []int {
	var l []int
	for k := range min(realServices, w.services) {
		l = append(l, (k+1)*w.services/min(realServices, w.services)-1)
	}
	return l
}

func (w *workload) isReal(i int) bool {
	for _, r := range w.reals() {
		if r == i {
			return true
		}
	}
	return false
}

// put adds service i to a change. A different shift gives it a different first endpoint.
func (w *workload) put(c *serve.Change, i, shift int) {
	p := ports(corev1.ProtocolTCP)
	c.Services = append(c.Services, newService(w.name(i), []netip.Addr{w.addr(i)}, p))
	w.putSlice(c, i, shift)
}

func (w *workload) putSlice(c *serve.Change, i, shift int) {
	var eps []endpoint
	for j := range w.endpoints {
		e := endpoint{addr: counted("11.0.0.0", i*w.endpoints+j+1), node: fmt.Sprintf("node-%d", j),
			ready: true, serving: true}
		if w.isReal(i) {
			if j >= len(w.pods) {
				break
			}
			e.addr, e.node = w.pods[j], serve.NodeName
		}
		if j == 0 && shift > 0 {
			e.addr = counted("172.16.0.0", shift)
		}
		eps = append(eps, e)
	}
	c.Slices = append(c.Slices, newSlice(w.name(i), true, ports(corev1.ProtocolTCP), eps))
}

// all is the change that adds everything.
func (w *workload) all() *serve.Change {
	c := &serve.Change{}
	for i := range w.services {
		w.put(c, i, 0)
	}
	return c
}

// oneEndpoint replaces an endpoint of a service that is not real. Each round replaces another one.
func (w *workload) oneEndpoint(round int) *serve.Change {
	c := &serve.Change{}
	i := round * 7 % w.services
	for w.isReal(i) && w.services > realServices {
		i = (i + 1) % w.services
	}
	w.putSlice(c, i, round+1)
	return c
}

// oneService adds a service on even rounds, and removes it on odd ones.
func (w *workload) oneService(round int) *serve.Change {
	c := &serve.Change{}
	if round%2 == 0 {
		w.put(c, w.services, 0)
		return c
	}
	n := types.NamespacedName{Namespace: namespace, Name: w.name(w.services)}
	c.GoneServices = append(c.GoneServices, n)
	n.Name += "-4"
	c.GoneSlices = append(c.GoneSlices, n)
	return c
}

// pods are the IPv4 addresses of a cluster's pods on the node, which serve.
func pods(c *netnstest.Cluster) ([]netip.Addr, error) {
	var l []netip.Addr
	for _, h := range c.Pods {
		if err := h.Serve(servicemodel.TCP, targetPort); err != nil {
			return nil, err
		}
		l = append(l, h.IPv4)
	}
	return l, nil
}
