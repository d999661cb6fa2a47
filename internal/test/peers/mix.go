package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kernlb/kernlb/internal/test/peers/serve"
)

// mixText is the distribution of [newMix].
const mixText = "60 % of the services have 1 to 3 endpoints, 30 % 4 to 20, 9 % 21 to 100, " +
	"1 % 101 to 1,000; a tenth has session affinity"

// mix is services of several sizes, with one TCP port each.
type mix struct {
	sizes    []int // of the services, and of one more for oneService
	services int
	affinity int // each service of that number has session affinity; 0: none
}

// newUniform returns n services with the same number of endpoints.
func newUniform(n, endpoints int) *mix {
	return &mix{sizes: slices.Repeat([]int{endpoints}, n+1), services: n}
}

// newMix draws services with the sizes of real clusters. It always draws the same services.
func newMix(n int) *mix {
	r := rand.New(rand.NewPCG(1, 2))
	m := &mix{services: n, affinity: 10}
	for i := range n + 1 {
		from, to := 1, 3
		switch {
		case i%100 == 99:
			from, to = 101, 1000
		case i%10 == 9:
			from, to = 21, 100
		case i%10 >= 6:
			from, to = 4, 20
		}

		m.sizes = append(m.sizes, from+r.IntN(to-from+1))
	}

	return m
}

// newSizes returns two services of each size from 1 to n; for n = 1, two hundred services with two
// endpoints.
func newSizes(n int) *mix {
	if n == 1 {
		return &mix{sizes: slices.Repeat([]int{2}, 200), services: 200}
	}
	m := &mix{services: 2 * n}
	for i := range 2 * n {
		m.sizes = append(m.sizes, i/2+1)
	}
	return m
}

// endpoints returns the number of endpoints of the services before service i, which is the number
// of its first endpoint.
func (m *mix) endpoints(i int) (n int) {
	for _, size := range m.sizes[:i] {
		n += size
	}
	return n
}

func (m *mix) name(i int) string { return fmt.Sprintf("service-%d", i) }

// all is the change that adds all services.
func (m *mix) all() *serve.Change {
	c := &serve.Change{}
	for i := range m.services {
		m.put(c, i)
	}
	return c
}

// addr is the cluster IP of service i.
func (m *mix) addr(i int) netip.Addr { return counted("10.96.0.0", i+1) }

// put adds service i to a change.
func (m *mix) put(c *serve.Change, i int) {
	s := newService(m.name(i), []netip.Addr{m.addr(i)}, ports(corev1.ProtocolTCP))
	if m.affinity > 0 && i%m.affinity == 3 {
		seconds := int32(10800)
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}

	c.Services = append(c.Services, s)
	m.putSlice(c, i, 0)
}

// putSlice adds the endpoints of service i. A shift replaces the first endpoint.
func (m *mix) putSlice(c *serve.Change, i, shift int) {
	var eps []endpoint
	first := m.endpoints(i) + 1
	for j := range m.sizes[i] {
		e := endpoint{addr: counted("11.0.0.0", first+j), node: fmt.Sprintf("node-%d", j),
			ready: true, serving: true}
		if j == 0 && shift > 0 {
			e.addr = counted("172.16.0.0", shift)
		}
		eps = append(eps, e)
	}

	c.Slices = append(c.Slices, newSlice(m.name(i), true, ports(corev1.ProtocolTCP), eps))
}

// oneEndpoint replaces an endpoint of one service after the other.
func (m *mix) oneEndpoint(round int) *serve.Change {
	c, i := &serve.Change{}, round*7%m.services
	m.putSlice(c, i, round+1)
	return c
}

// oneService adds a service on even rounds, and removes it on odd ones.
func (m *mix) oneService(round int) *serve.Change {
	c := &serve.Change{}
	if round%2 == 0 {
		m.put(c, m.services)
		return c
	}

	n := types.NamespacedName{Namespace: namespace, Name: m.name(m.services)}
	c.GoneServices = append(c.GoneServices, n)
	n.Name += "-4"
	c.GoneSlices = append(c.GoneSlices, n)
	return c
}

// probed adds a service of size UDP endpoints in both families, to which packets are sent.
func (m *mix) probed(c *serve.Change, size int) {
	name, p := fmt.Sprintf("probed-%d", size), ports(corev1.ProtocolUDP)
	c.Services = append(c.Services, newService(name, probedAddrs(size), p))
	for _, is4 := range []bool{true, false} {
		var eps []endpoint
		for j := range size {
			e := endpoint{addr: counted("11.128.0.0", size<<10+j), node: "elsewhere", ready: true,
				serving: true}
			if !is4 {
				e.addr = sixOf(e.addr)
			}
			eps = append(eps, e)
		}

		c.Slices = append(c.Slices, newSlice(name, is4, p, eps))
	}
}

// probedAddrs are the cluster IPs of the probed service of a size.
func probedAddrs(size int) []netip.Addr {
	a := counted("10.127.0.0", size)
	return []netip.Addr{a, sixOf(a)}
}

// sixOf is an IPv6 address for an IPv4 address.
func sixOf(a netip.Addr) netip.Addr {
	b := netip.MustParseAddr("fd00:11::").As16()
	four := a.As4()
	copy(b[12:], four[:])
	return netip.AddrFrom16(b)
}

// counted is the i-th address from base on.
func counted(base string, i int) netip.Addr {
	b := netip.MustParseAddr(base).As4()
	n := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	n += uint32(i)
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}
