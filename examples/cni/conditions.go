package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// parseConditions returns the one address that conditions allow, or an invalid address without
// conditions. Conditions are matches of iptables or nftables, and can contain anything. This plugin
// accepts only one address of the host, in the words of either.
func parseConditions(family string, conditions []string) (netip.Addr, error) {
	words := strings.Fields(strings.Join(conditions, " "))
	keyword := map[string]string{"IPv4": "ip", "IPv6": "ip6"}[family]
	var value string
	switch {
	case len(words) == 0:
		return netip.Addr{}, nil
	case len(words) == 2 && slices.Contains([]string{"-d", "--dst", "--destination"}, words[0]):
		value = words[1]
	case len(words) == 3 && words[0] == keyword && words[1] == "daddr":
		value = words[2]
	default:
		return netip.Addr{}, fmt.Errorf("%s: cannot be honoured: must be \"-d ADDRESS\" or "+
			"\"%s daddr ADDRESS\"; for other conditions have a firewall of your own drop packets",
			strings.Join(words, " "), keyword)
	}
	addr, err := parseSingle(value)
	if err == nil && addr.Is4() != (family == "IPv4") {
		err = errors.New("is of the other family")
	}
	if err == nil {
		err = checkHostIP(addr)
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%s: %w", value, err)
	}
	return addr, nil
}

// parseSingle parses an address, or a range of one address.
func parseSingle(s string) (netip.Addr, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		if !p.IsSingleIP() {
			return netip.Addr{}, errors.New("ranges cannot be honoured, one address can")
		}
		return p.Addr(), nil
	}
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, errors.New("must be an IP address")
	}
	return addr, nil
}
