package diagnose

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// arpLimit is the time to wait for answers of ARP.
const arpLimit = 300 * time.Millisecond

// Fields of ARP for IPv4 over Ethernet (RFC 826).
const (
	arpLen             = 28
	arpRequest         = 1
	arpReply           = 2
	arpOperation       = 6
	arpSender          = 8
	arpSenderAddr      = 14
	arpTargetAddr      = 24
	hardwareAddrLen    = 6
	ethernetProtocolIP = 0x0800
)

// askARP asks which machines on a link have an address, on a thread in the namespace of the link.
func askARP(out *netlink.LinkAttrs, src, target netip.Addr) (l []net.HardwareAddr, err error) {
	if len(out.HardwareAddr) != hardwareAddrLen || !target.Is4() {
		return nil, errors.ErrUnsupported
	}
	if !src.Is4() {
		src = netip.IPv4Unspecified() // a probe (RFC 5227)
	}
	proto := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ARP))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(proto))
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing is lost
	at := &unix.SockaddrLinklayer{Protocol: proto, Ifindex: out.Index,
		Halen: hardwareAddrLen, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	if err := unix.Bind(fd, at); err != nil {
		return nil, err
	}
	if err := unix.Sendto(fd, request(out.HardwareAddr, src, target), 0, at); err != nil {
		return nil, err
	}
	buf := make([]byte, 128)
	for end := time.Now().Add(arpLimit); ; {
		left := time.Until(end)
		if left <= 0 {
			return l, nil
		}
		tv := unix.NsecToTimeval(max(left, time.Millisecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return nil, err
		}
		n, _, err := unix.Recvfrom(fd, buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, err
		}

		who, ok := replies(buf[:n], target)
		if ok && !slices.ContainsFunc(l, func(a net.HardwareAddr) bool {
			return bytes.Equal(a, who)
		}) {
			l = append(l, who)
		}
	}
}

func request(own net.HardwareAddr, src, target netip.Addr) []byte {
	b := make([]byte, arpLen)
	binary.BigEndian.PutUint16(b, unix.ARPHRD_ETHER)
	binary.BigEndian.PutUint16(b[2:], ethernetProtocolIP)
	b[4], b[5] = hardwareAddrLen, net.IPv4len
	binary.BigEndian.PutUint16(b[arpOperation:], arpRequest)
	copy(b[arpSender:], own)
	copy(b[arpSenderAddr:], src.AsSlice())
	copy(b[arpTargetAddr:], target.AsSlice())
	return b
}

// replies returns the link-layer address of a machine that claims the address.
func replies(b []byte, target netip.Addr) (net.HardwareAddr, bool) {
	if len(b) < arpLen || binary.BigEndian.Uint16(b[arpOperation:]) != arpReply ||
		!bytes.Equal(b[arpSenderAddr:arpSenderAddr+net.IPv4len], target.AsSlice()) {
		return nil, false
	}

	return bytes.Clone(b[arpSender : arpSender+hardwareAddrLen]), true
}
