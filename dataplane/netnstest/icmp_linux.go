package netnstest

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// enableICMPErrors makes the kernel queue ICMP errors on the socket as soon as they arrive (ip(7),
// IP_RECVERR). Without it, TCP over IPv6 learns of an error only when its SYN is sent again, a
// second later.
func enableICMPErrors(fd, domain int) error {
	if domain == unix.AF_INET {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
}

// readICMPError removes ICMP errors from the socket's error queue until accept returns true, and
// returns that error. accept gets the beginning of the transport packet that caused the error. A
// nil accept is for sockets for which the kernel matches errors by ports. Without such an error,
// readICMPError returns nil.
func readICMPError(fd int, accept func(transport []byte) bool) *ICMPError {
	payload, oob := make([]byte, 512), make([]byte, 512)
	for {
		n, oobn, _, _, err := unix.Recvmsg(fd, payload, oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil
		}
		messages, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			continue
		}
		for _, m := range messages {
			queued := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR ||
				m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR
			e, ok := decodeExtendedErr(m.Data)
			if ok && queued && (accept == nil || accept(payload[:n])) {
				return e
			}
		}
	}
}

// extendedErrLen is the size of struct sock_extended_err (linux/errqueue.h).
const extendedErrLen = 16

// decodeExtendedErr decodes a struct sock_extended_err from ICMP, and the sockaddr of the sender
// behind it.
func decodeExtendedErr(b []byte) (*ICMPError, bool) {
	if len(b) < extendedErrLen {
		return nil, false
	}
	origin, e := b[4], &ICMPError{Type: b[5], Code: b[6]}
	if origin != unix.SO_EE_ORIGIN_ICMP && origin != unix.SO_EE_ORIGIN_ICMP6 {
		return nil, false
	}
	b = b[extendedErrLen:]
	if len(b) < 8 {
		return nil, false
	}
	switch family := binary.NativeEndian.Uint16(b); {
	case family == unix.AF_INET:
		e.From = netip.AddrFrom4([4]byte(b[4:8]))
	case family == unix.AF_INET6 && len(b) >= 24:
		e.From = netip.AddrFrom16([16]byte(b[8:24]))
	default:
		return nil, false
	}

	return e, true
}
