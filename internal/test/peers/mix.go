package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/kernlb/kernlb/internal/test/peers/serve"
)

// mixText is the distribution of [newMix].
const mixText = "60 % of the services have 1 to 3 endpoints, 30 % 4 to 20, 9 % 21 to 100, " +
	"1 % 101 to 1,000; a tenth has session affinity"

// mix is services of several sizes, with one TCP port each.
type mix struct {
	sizes    []int
	affinity int // each service of that number has session affinity; 0: none
	first    []int
}

// newMix draws services as clusters have them, always the same ones.
func newMix(n int) *mix {
	r := rand.New(rand.NewPCG(1, 2))
	m := &mix{affinity: 10}
	for i := range n {
		from, to := 1, 3
		switch i % 100 {
		case 99:
			from, to = 101, 1000
		case 9, 19, 29, 39, 49, 59, 69, 79, 89:
			from, to = 21, 100
		default:
			if i%10 >= 6 {
				from, to = 4, 20
			}
		}
		m.sizes = append(m.sizes, from+r.IntN(to-from+1))
	}
	return m
}

// newSizes makes two services of each size from 1 to n; for 1, two hundred with two endpoints.
func newSizes(n int) *mix {
	m := &mix{}
	if n == 1 {
		for range 200 {
			m.sizes = append(m.sizes, 2)
		}
		return m
	}
	for i := range 2 * n {
		m.sizes = append(m.sizes, i/2+1)
	}
	return m
}

// endpoints is the number of all endpoints.
func (m *mix) endpoints() (n int) {
	for _, size := range m.sizes {
		n += size
	}
	return n
}

// at is the number of the first endpoint of service i.
func (m *mix) at(i int) int {
	for len(m.first) <= i {
		next := 0
		if k := len(m.first); k > 0 {
			next = m.first[k-1] + m.sizes[k-1]
		}
		m.first = append(m.first, next)
	}
	return m.first[i]
}

func (m *mix) name(i int) string { return fmt.Sprintf("service-%d", i) }

// all is the change that adds all services.
func (m *mix) all() *serve.Change {
	c := &serve.Change{}
	for i := range m.sizes {
		s := newService(m.name(i), []netip.Addr{counted("10.96.0.0", i+1)},
			ports(corev1.ProtocolTCP))
		if m.affinity > 0 && i%m.affinity == 3 {
			seconds := int32(10800)
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
		}
		c.Services = append(c.Services, s)
		m.putSlice(c, i, 0)
	}
	return c
}

// putSlice adds the endpoints of service i. A shift replaces the first one.
func (m *mix) putSlice(c *serve.Change, i, shift int) {
	var eps []endpoint
	for j := range m.sizes[i] {
		e := endpoint{addr: counted("11.0.0.0", m.at(i)+j+1), node: fmt.Sprintf("node-%d", j),
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
	c := &serve.Change{}
	m.putSlice(c, round*7%len(m.sizes), round+1)
	return c
}

// probed is a service of that many UDP endpoints in both families, which packets are sent to.
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
