package kube

import (
	"errors"
	"net/netip"

	netutils "k8s.io/utils/net"
)

// Errors of the parsers. They do not repeat the value, because the problem contains it.
var (
	errAddr   = errors.New("not an IP address")
	errPrefix = errors.New("not an IP range such as 10.0.0.0/8")
)

// parseAddr parses an IP address as Kubernetes has always done. Leading zeros are allowed and
// ignored, even in IPv4, where [netip.ParseAddr] refuses them. An IPv4 address written as IPv6
// (::ffff:10.0.0.1) is an IPv4 address. A zone is an error.
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		a, _ = netip.AddrFromSlice(netutils.ParseIPSloppy(s))
	}
	if !a.IsValid() || a.Zone() != "" {
		return netip.Addr{}, errAddr
	}
	return a.Unmap(), nil
}

// parsePrefix parses an IP range in CIDR notation and masks it. It parses the address like
// parseAddr.
func parsePrefix(s string) (netip.Prefix, error) {
	ip, network, err := netutils.ParseCIDRSloppy(s)
	if err != nil {
		return netip.Prefix{}, errPrefix
	}
	a, _ := netip.AddrFromSlice(ip)
	ones, bits := network.Mask.Size()
	p, err := a.Unmap().Prefix(ones - bits + a.Unmap().BitLen()) // IPv4 may be written as IPv6
	if err != nil {
		return netip.Prefix{}, errPrefix
	}
	return p, nil
}

// parseUsable parses an address to which packets can be sent.
func parseUsable(s string) (netip.Addr, error) {
	a, err := parseAddr(s)
	switch {
	case err != nil:
		return a, err
	case a.IsUnspecified():
		return a, errors.New("may not be unspecified")
	case a.IsLoopback():
		return a, errors.New("may not be a loopback address")
	case a.IsMulticast():
		return a, errors.New("may not be a multicast address")
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return a, errors.New("may not be the broadcast address")
	}

	return a, nil
}

// parseRoutable parses the address of an endpoint or an external IP. A link-local address is also
// an error (ValidateNonSpecialIP in k8s.io/kubernetes/pkg/apis/core/validation).
func parseRoutable(s string) (netip.Addr, error) {
	a, err := parseUsable(s)
	if err == nil && a.IsLinkLocalUnicast() {
		return a, errors.New("may not be a link-local address")
	}
	return a, err
}
