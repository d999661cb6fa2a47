package dataplanetest

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// firstCall and lastCall are the first and the last of the 10,000 ports of [callsStay]. An emulated
// machine, in which IPVS is tested, would take minutes for all of them.
const firstCall, lastCall uint16 = 10000, 19999

func (b *Backend) lastCall() uint16 {
	if b.OwnConnections {
		return firstCall + 999
	}
	return lastCall
}

// callsStay models RTP: clients send to all ports of a UDP range. All datagrams of a client reach
// the same pod, at the ports to which they were sent. When the pod is replaced, they all reach the
// same other pod.
func callsStay(t *testing.T, w *world) {
	with := func(hosts ...string) servicemodel.State {
		calls := web(sticky(time.Hour), func(s *servicemodel.Service) {
			s.Ports = []servicemodel.ServicePort{{Name: "udp", Protocol: servicemodel.UDP,
				Port: firstCall, EndPort: w.under.lastCall()}}
		})
		return state(podCIDRs(thisNode()), calls, each(eps(hosts...), keptPorts))
	}

	if !w.accepted(t, with("pod2", "pod3"), backends.FieldEndPort, "") {
		return
	}
	w.keepFlows(t, servicemodel.ConnectionPolicy{Mode: servicemodel.CutConnections})
	heard := w.listenForCalls(t, "pod2", "pod3", "remote1")
	w.apply(t, with("pod2", "pod3"))
	had := map[string]string{}
	for _, client := range []string{"pod1", "outside1"} {
		had[client] = heard.call(t, w, client)
	}
	gone, stays := had["outside1"], map[string]string{"pod2": "pod3", "pod3": "pod2"}
	w.apply(t, with(stays[gone], "remote1"))
	w.settle(t)
	for client, before := range had {
		switch now := heard.call(t, w, client); {
		case now == gone:
			t.Errorf("%s: still reaches %s, which is gone", client, gone)
		case before != gone && now != before:
			t.Errorf("%s: moved from %s to %s", client, before, now)
		}
	}
}

// heardCalls are the datagrams that pods have received.
type heardCalls struct {
	mu    sync.Mutex
	heard map[string]map[uint16]bool // by pod and port
	more  chan struct{}
}

// listenForCalls receives datagrams to any port at some hosts.
func (w *world) listenForCalls(t *testing.T, hosts ...string) *heardCalls {
	t.Helper()
	c := &heardCalls{heard: map[string]map[uint16]bool{}, more: make(chan struct{}, 1)}
	for _, host := range hosts {
		var conn net.PacketConn
		must(t, w.hosts[host].NS.Do(func() (err error) {
			conn, err = (&net.ListenConfig{}).ListenPacket(t.Context(), "ip4:udp",
				w.hosts[host].IPv4.String())
			return err
		}))

		done := make(chan struct{})
		go func() {
			defer close(done)
			c.receive(host, conn)
		}()

		t.Cleanup(func() {
			conn.Close()
			<-done
		})
	}

	return c
}

// receive notes the ports of datagrams, until the socket is closed.
func (c *heardCalls) receive(host string, from net.PacketConn) {
	b := make([]byte, 64)
	for {
		n, _, err := from.ReadFrom(b)
		if err != nil {
			return
		}
		if n < 8 { // a header of UDP
			continue
		}
		c.mu.Lock()
		if c.heard[host] == nil {
			c.heard[host] = map[uint16]bool{}
		}
		c.heard[host][binary.BigEndian.Uint16(b[2:])] = true
		c.mu.Unlock()
		select {
		case c.more <- struct{}{}:
		default:
		}
	}
}

// ports returns the number of ports that were heard at each host, and whether a given port is among
// them.
func (c *heardCalls) ports(port uint16) (of map[string]int, heard bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of = map[string]int{}
	for host, ports := range c.heard {
		of[host] = len(ports)
		heard = heard || ports[port]
	}

	return of, heard
}

// call sends a datagram from one port of a host to each port of the range, and returns the pod that
// received them all.
func (c *heardCalls) call(t *testing.T, w *world, client string) string {
	t.Helper()
	c.mu.Lock()
	clear(c.heard)
	c.mu.Unlock()
	var conn *net.UDPConn
	must(t, w.hosts[client].NS.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", nil)
		return err
	}))

	defer conn.Close()
	c.reach(t, conn, firstCall) // first packets of several connections may race with one another
	var ports []uint16
	last := w.under.lastCall()
	for p := firstCall; p <= last; p++ {
		if ports = append(ports, p); len(ports) == 64 || p == last {
			c.reach(t, conn, ports...) // not all at once, so that the receiver's buffer has room
			ports = nil
		}
	}

	of, _ := c.ports(0)
	for host, n := range of {
		if len(of) == 1 && n == int(last-firstCall)+1 {
			return host
		}
	}

	t.Fatalf("%s: ports at pods: %v", client, of)
	return ""
}

// reach sends datagrams until each of some ports was heard. A datagram that was lost on a busy
// machine is sent again.
func (c *heardCalls) reach(t *testing.T, conn *net.UDPConn, ports ...uint16) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); len(ports) > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("nothing receives port %d", ports[0])
		}
		for _, p := range ports {
			_, err := conn.WriteToUDPAddrPort([]byte("rtp"), netip.AddrPortFrom(clusterIP[0], p))
			must(t, err)
		}

		again := time.After(time.Second)
		for waits := true; waits && len(ports) > 0; {
			select {
			case <-c.more:
			case <-again:
				waits = false
			}

			ports = slices.DeleteFunc(ports, func(p uint16) bool {
				_, heard := c.ports(p)
				return heard
			})
		}
	}
}
