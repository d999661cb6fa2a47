package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/peers/serve"
)

// firstPacket is the time of the first datagram of a new flow: send on a connected socket of the
// node, to an endpoint elsewhere.
type firstPacket struct {
	Peer   string  `json:"peer"`
	Load   string  `json:"load"`
	Family string  `json:"family"`
	Size   int     `json:"endpoints"`
	P50Us  float64 `json:"p50_us"`
	P99Us  float64 `json:"p99_us"`
}

// established is the time of a datagram of a connection that has seen replies, sent and received
// over loopback.
type established struct {
	Peer string  `json:"peer"`
	Path string  `json:"path"`
	Ns   float64 `json:"ns"`
}

// The namespaces without a peer, for comparison.
const (
	noTable   = "no nf_tables"
	emptyNAT  = "conntrack, empty nat chains"
	oneRule   = "conntrack, one dnat rule"
	toService = "to a service"
	pastIt    = "past services"
)

// probedSizes are the sizes of the services to which first packets are sent.
var probedSizes = []int{1, 2, 10, 100, 200, 400}

// rules of the namespaces without a peer. A rule about connections turns conntrack on.
var rules = map[string]string{
	noTable: "",
	emptyNAT: `table ip t {
	chain pre { type nat hook prerouting priority -100; }
	chain out { type nat hook output priority -100; }
	chain post { type nat hook postrouting priority 100; }
	chain unused { ct state new accept; }
}
table ip6 t {
	chain pre { type nat hook prerouting priority -100; }
	chain out { type nat hook output priority -100; }
	chain post { type nat hook postrouting priority 100; }
	chain unused { ct state new accept; }
}`,
	oneRule: `table ip t {
	chain out {
		type nat hook output priority -100
		ip daddr 10.127.127.1 udp dport 80 dnat to 10.98.0.1:8080
	}
	chain post { type nat hook postrouting priority 100; }
}`,
}

// stand is a namespace with or without a peer. Packets that leave it vanish in a device.
type stand struct {
	name string
	ns   *netnstest.NS
	peer *peer
}

// local is a service with an endpoint on the node itself, and that endpoint.
var (
	localService  = netip.MustParseAddr("10.127.127.1")
	localEndpoint = netip.MustParseAddr("10.98.0.1")
)

func startStand(ctx context.Context, name string, load *serve.Change) (n *stand, err error) {
	n = &stand{name: name}
	if n.ns, err = netnstest.NewNS("first"); err != nil {
		return nil, err
	}

	// Either device drops all packets. Few kernels lack both devices.
	_, err = runIn(ctx, n.ns, `ip link add name sink0 type dummy || ip link add name sink0 type ifb
		ip link set lo up
		ip addr add 192.168.77.1/24 dev sink0
		ip addr add 10.98.0.1/32 dev sink0
		ip -6 addr add fd77::1/64 dev sink0 nodad
		ip link set sink0 up
		ip route add default dev sink0
		ip -6 route add default dev sink0`, "sh", "-e")
	if text, ok := rules[name]; ok && err == nil {
		_, err = runIn(ctx, n.ns, text, "nft", "-f", "-")
	} else if err == nil {
		n.peer, err = startPeer(ctx, name, n.ns, serve.Settings{NodeAddrs: []netip.Addr{
			netip.MustParseAddr("192.168.77.1"), netip.MustParseAddr("fd77::1")}}, os.Stderr)
		if err == nil {
			_, err = n.peer.sync(load)
		}
	}

	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *stand) close() (err error) {
	if n.peer != nil {
		err = n.peer.stop()
	}
	return errors.Join(err, n.ns.Close())
}

// stands starts a namespace for each name.
func stands(ctx context.Context, names []string, load *serve.Change) (l []*stand, err error) {
	for _, name := range names {
		n, err := startStand(ctx, name, load)
		if err != nil {
			return nil, errors.Join(err, closeAll(l))
		}
		l = append(l, n)
	}

	return l, nil
}

func closeAll(l []*stand) (err error) {
	for _, n := range l {
		err = errors.Join(err, n.close())
	}
	return err
}

// first measures first packets with different numbers of sizes and with the mix, or with different
// numbers of services.
func (m *measurement) first(ctx context.Context) error {
	m.figures.First = nil
	mixes, loads := map[string]*mix{"mix of 1,000": newMix(1000)}, []string{"mix of 1,000"}
	for _, n := range m.sizes {
		l := fmt.Sprintf("%d sizes", n)
		mixes[l], loads = newSizes(n), append(loads, l)
	}

	if m.endpoints > 0 {
		loads = nil
		for _, n := range m.services {
			l := fmt.Sprintf("%d services", n)
			mixes[l], loads = m.load(n), append(loads, l)
		}
	}

	for _, l := range loads {
		fmt.Fprintf(m.log, "first packets, %s\n", l)
		change := mixes[l].all()
		most := slices.Max(mixes[l].sizes)
		sizes := slices.DeleteFunc(slices.Clone(probedSizes), func(size int) bool {
			return size > most || most == 2 && size < 2
		})
		for _, size := range sizes {
			mixes[l].probed(change, size)
		}
		if err := m.firstBeside(ctx, l, sizes, change); err != nil {
			return err
		}
	}

	return nil
}

func (m *measurement) firstBeside(ctx context.Context, load string, sizes []int,
	c *serve.Change) (err error) {
	l, err := stands(ctx, append(slices.Clone(m.peers), emptyNAT, noTable), c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(l)) }()
	best := map[firstPacket][]time.Duration{}
	var order []firstPacket
	for range m.rounds {
		for _, n := range l {
			if _, err := runIn(ctx, n.ns, "", "conntrack", "-F"); err != nil {
				return err
			}
			for _, size := range sizes {
				for i, family := range []string{"IPv4", "IPv6"} {
					key := firstPacket{Peer: n.name, Load: load, Family: family, Size: size}
					t, err := n.probe(netip.AddrPortFrom(probedAddrs(size)[i], servicePort),
						m.probes)
					if err != nil {
						return fmt.Errorf("%s: %w", n.name, err)
					}
					old := best[key]
					if old == nil {
						order = append(order, key)
					}
					if old == nil || t[len(t)/2] < old[len(old)/2] {
						best[key] = t
					}
				}
			}
		}
	}

	for _, key := range order {
		t := best[key]
		key.P50Us, key.P99Us = micro(t[len(t)/2]), micro(t[len(t)*99/100])
		m.figures.First = append(m.figures.First, key)
	}

	return nil
}

func micro(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// probe sends the first datagram of n flows, and returns their sorted times.
func (n *stand) probe(to netip.AddrPort, count int) (times []time.Duration, err error) {
	runtime.GC()
	err = n.ns.Do(func() error {
		family, addr := sockaddr(to)
		payload := make([]byte, 8)
		for range count {
			fd, err := syscall.Socket(family, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
			if err != nil {
				return os.NewSyscallError("socket", err)
			}
			if err = syscall.Connect(fd, addr); err == nil {
				start := time.Now()
				_, err = syscall.Write(fd, payload)
				times = append(times, time.Since(start))
			}

			syscall.Close(fd)
			if err != nil {
				return fmt.Errorf("send to %s: %w", to, err)
			}
		}

		return nil
	})
	slices.Sort(times)
	return times, err
}

func sockaddr(a netip.AddrPort) (int, syscall.Sockaddr) {
	if a.Addr().Is4() {
		return syscall.AF_INET, &syscall.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return syscall.AF_INET6, &syscall.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

// established measures datagrams of one connection, to a service and past services.
func (m *measurement) established(ctx context.Context) (err error) {
	fmt.Fprintln(m.log, "established connections")
	m.figures.Established = nil
	load := newMix(1000)
	c := load.all()
	c.Services = append(c.Services, newService("local", []netip.Addr{localService},
		ports(corev1.ProtocolUDP)))
	c.Slices = append(c.Slices, newSlice("local", true, ports(corev1.ProtocolUDP),
		[]endpoint{{addr: localEndpoint, node: serve.NodeName, ready: true, serving: true}}))
	l, err := stands(ctx, append(slices.Clone(m.peers), emptyNAT, oneRule, noTable), c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(l)) }()
	best := map[established]time.Duration{}
	var order []established
	for range m.rounds {
		for _, n := range l {
			for path, to := range map[string]netip.AddrPort{
				toService: netip.AddrPortFrom(localService, servicePort),
				pastIt:    netip.AddrPortFrom(localEndpoint, targetPort)} {
				if path == toService && (n.name == noTable || n.name == emptyNAT) {
					continue
				}
				key := established{Peer: n.name, Path: path}
				took, err := n.exchange(to, 20*m.probes)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", n.name, path, err)
				}
				if best[key] == 0 {
					order = append(order, key)
				}
				if best[key] == 0 || took < best[key] {
					best[key] = took
				}
			}
		}
	}

	slices.SortStableFunc(order, func(a, b established) int {
		return strings.Compare(a.Path, b.Path)
	})
	for _, key := range order {
		key.Ns = float64(best[key].Nanoseconds()) / float64(20*m.probes)
		m.figures.Established = append(m.figures.Established, key)
	}

	return nil
}

// exchange sends datagrams to a server on the node, receives each, and returns the time that it
// took. The server has already answered the first datagram.
func (n *stand) exchange(to netip.AddrPort, count int) (took time.Duration, err error) {
	err = n.ns.Do(func() error {
		var fds [2]int
		for i := range fds {
			fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
			if err != nil {
				return os.NewSyscallError("socket", err)
			}
			defer syscall.Close(fd)
			limit := syscall.Timeval{Sec: 10}
			if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO,
				&limit); err != nil {
				return os.NewSyscallError("setsockopt", err)
			}

			fds[i] = fd
		}

		client, server := fds[0], fds[1]
		_, at := sockaddr(netip.AddrPortFrom(localEndpoint, targetPort))
		_, service := sockaddr(to)
		err := errors.Join(syscall.Bind(server, at), syscall.Connect(client, service))
		if err != nil {
			return err
		}
		payload := make([]byte, 8)
		_, err = syscall.Write(client, payload)
		_, from, err2 := syscall.Recvfrom(server, payload, 0)
		if err = errors.Join(err, err2); err == nil {
			err = syscall.Sendto(server, payload, 0, from)
		}
		if err == nil {
			_, err = syscall.Read(client, payload)
		}
		start := time.Now()
		for i := 0; i < count && err == nil; i++ {
			if _, err = syscall.Write(client, payload); err == nil {
				_, err = syscall.Read(server, payload)
			}
		}

		took = time.Since(start)
		return err
	})
	return took, err
}
