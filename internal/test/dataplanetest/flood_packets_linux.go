package dataplanetest

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// floodProbe counts the packets of a flood at their source and where they leave the node. It drops
// them there, so that each packet is the first packet of a flow. The endpoints are from floodPool.
// IPVS forwards packets as new packets; the probe does not count these again.
const floodProbe = `nft -f - << END
table inet flood {
	counter begun { }
	counter translated { }
	counter forbidden { }
	counter astray { }
	chain begin {
		ip saddr 198.18.0.0/15 ip daddr != 10.244.9.0/24 counter name begun
		ip6 saddr 2001:db8:18::/47 ip6 daddr != fd00:10:244:9::/64 counter name begun
	}
	chain begin-here {
		type filter hook output priority -300
		jump begin
	}
	chain begin-outside {
		type filter hook prerouting priority -300
		iif != lo jump begin
	}
	chain leave {
		type filter hook postrouting priority -10
		ip saddr 198.18.0.0/15 goto left
		ip6 saddr 2001:db8:18::/47 goto left
	}
	chain left {
		ip daddr 10.244.9.1-10.244.9.140 th dport 8080 goto wanted
		ip6 daddr fd00:10:244:9::1-fd00:10:244:9::8c th dport 8080 goto wanted
		ip daddr != { 10.96.0.10, 203.0.113.10, 192.0.2.10 } counter name astray
		ip6 daddr != { fd00:10:96::10, 2001:db8:113::10, 2001:db8:2::10 } counter name astray
		drop
	}
	chain wanted {
		ip saddr 198.19.0.0/16 counter name forbidden drop
		ip6 saddr 2001:db8:19::/48 counter name forbidden drop
		counter name translated drop
	}
}
END
`

// floodSource has the prefixes of the sources of a flood, of IPv4 and IPv6.
type floodSource [2]netip.Prefix

// The sources of floods.
var (
	floodAllowed   = floodSource(prefixes("198.18.0.0/16", "2001:db8:18::/48"))
	floodForbidden = floodSource(prefixes("198.19.0.0/16", "2001:db8:19::/48"))
)

// floodProtocols are the protocols of the packets.
var floodProtocols = [2]byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP}

// floodSender sends packets that are drawn at random.
type floodSender struct {
	rng  *rand.Rand
	from []floodSource
	to   []target
	// fds are sockets in the node and outside, by family, for packets with their headers.
	fds [2][]int
}

// floodSender prepares a flood.
func (w *world) floodSender(t *testing.T, seed uint64, from []floodSource,
	to []target) *floodSender {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nft is not installed (Debian package nftables)")
	}
	w.script(t, floodProbe)

	// The packets have no checksums, so conntrack must not verify checksums of packets from
	// outside.
	must(t, w.Node.NS.SetSysctl("net/netfilter/nf_conntrack_checksum", "0"))
	s := &floodSender{rng: rand.New(rand.NewPCG(seed, 1)), from: from, to: to}
	for f, family := range []int{unix.AF_INET, unix.AF_INET6} {
		for _, ns := range []*netnstest.NS{w.Node.NS, w.hosts["outside1"].NS} {
			must(t, ns.Do(func() error {
				fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
				s.fds[f] = append(s.fds[f], fd)
				t.Cleanup(func() { unix.Close(fd) })
				return os.NewSyscallError("socket", err)
			}))
		}
	}

	return s
}

// send sends one packet. If the node refuses the packet, the system call returns an error, which
// send ignores, because the probe counts refused packets.
func (s *floodSender) send() {
	family, r := s.rng.IntN(2), s.rng.Uint64()
	fd := s.fds[family][s.rng.IntN(2)]
	src, to := s.from[s.rng.IntN(len(s.from))][family], s.to[s.rng.IntN(len(s.to))]
	b := firstPacket(floodProtocols[s.rng.IntN(2)], src.Addr(),
		netip.AddrPortFrom(to.addrs[family], to.port), r)
	if family == 0 {
		_ = unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: to.addrs[0].As4()})
	} else {
		_ = unix.Sendto(fd, b, 0, &unix.SockaddrInet6{Addr: to.addrs[1].As16()})
	}
}

// firstPacket is a SYN or a datagram of a new flow, without checksums. The last byte of its source,
// and the port, come from r, so that session affinity remembers few clients.
func firstPacket(proto byte, src netip.Addr, to netip.AddrPort, r uint64) []byte {
	const payload = 20
	var b []byte
	if to.Addr().Is4() {
		b = make([]byte, 20+payload)
		b[0], b[8], b[9] = 0x45, 64, proto
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
		copy(b[12:], src.AsSlice())
		copy(b[16:], to.Addr().AsSlice())
		b[15] = byte(r)
	} else {
		b = make([]byte, 40+payload)
		b[0], b[5], b[6], b[7] = 0x60, payload, proto, 64
		copy(b[8:], src.AsSlice())
		copy(b[24:], to.Addr().AsSlice())
		b[23] = byte(r)
	}

	l4 := b[len(b)-payload:]
	binary.BigEndian.PutUint16(l4, uint16(r>>16)|1024)
	binary.BigEndian.PutUint16(l4[2:], to.Port())
	if proto == unix.IPPROTO_UDP {
		binary.BigEndian.PutUint16(l4[4:], payload)
	} else {
		l4[12], l4[13], l4[14] = 5<<4, 0x02, 0xff // length of the header, SYN, window
	}

	return b
}

// counted reads a counter of floodProbe.
func (w *world) counted(t *testing.T, name string) int {
	t.Helper()
	out := ok(runIn(t.Context(), w.Node.NS, nil, "nft", "list", "counter", "inet", "flood",
		name))(t)
	m := floodCount.FindSubmatch(out)
	if m == nil {
		t.Fatalf("no packets of counter %s in %s", name, out)
	}
	return ok(strconv.Atoi(string(m[1])))(t)
}

var floodCount = regexp.MustCompile(`packets (\d+)`)
