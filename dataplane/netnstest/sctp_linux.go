package netnstest

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// association is the client's side of an SCTP probe.
type association struct {
	port uint16 // own port
	to   netip.AddrPort
	tag  uint32
	// looped means that the INIT passed all rules and arrived in the sender's own namespace. There,
	// the probe's raw socket keeps the kernel from answering that nothing listens.
	looped bool
}

// answer is the step of an SCTP probe. It ignores errors of the socket: they are ICMP errors that
// another probe to the same address caused.
func (a *association) answer(fd int) (Outcome, bool) {
	return readEach(fd, a.caused, func(b []byte, err error) (Outcome, bool) {
		if err != nil {
			return Outcome{}, false
		}
		return a.judge(b)
	})
}

// judge examines a packet that arrived. IPv4 raw sockets deliver the IP header, IPv6 raw sockets do
// not.
func (a *association) judge(b []byte) (Outcome, bool) {
	if a.to.Addr().Is4() {
		var ok bool
		if _, b, ok = decodePacket(b); !ok {
			return Outcome{}, false
		}
	}

	p, ok := decodeSCTP(b)
	switch {
	case !ok:
	case p.Chunk == sctpInit && p.SrcPort == a.port && p.InitTag == a.tag:
		a.looped = true
	case p.SrcPort != a.to.Port() || p.DstPort != a.port || p.Tag != a.tag:
	case p.Chunk == sctpInitAck:
		return answered(p.Cookie), true
	case p.Chunk == sctpAbort:
		return Outcome{Kind: Refused}, true
	}

	return Outcome{}, false
}

// caused reports whether a packet that an ICMP error quotes belongs to this association, because
// raw sockets get the errors of all packets.
func (a *association) caused(transport []byte) bool {
	return len(transport) >= 4 &&
		binary.BigEndian.Uint16(transport) == a.port &&
		binary.BigEndian.Uint16(transport[2:]) == a.to.Port()
}

// filterSCTP lets only packets from or to the port into a raw socket (classic BPF, see socket(7),
// SO_ATTACH_FILTER). Otherwise many probes at once would fill each other's buffers.
func filterSCTP(fd, domain int, port uint16) error {
	// X = length of the IP header, if the socket delivers one.
	prologue := unix.SockFilter{Code: unix.BPF_LDX | unix.BPF_MSH | unix.BPF_B, K: 0}
	if domain == unix.AF_INET6 {
		prologue = unix.SockFilter{Code: unix.BPF_LDX | unix.BPF_IMM, K: 0}
	}
	program := []unix.SockFilter{
		prologue,
		{Code: unix.BPF_LD | unix.BPF_IND | unix.BPF_H, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port), Jt: 2},
		{Code: unix.BPF_LD | unix.BPF_IND | unix.BPF_H, K: 2},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}
