package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Mapping maps addresses of services and endpoints to addresses on this host. The first matching
// rule counts. An address without a matching rule is not mapped.
type Mapping []Rule

// Rule maps addresses to one address, or leaves them out.
type Rule struct {
	From     netip.Prefix // the addresses
	FromPort uint16       // the port; 0 is any
	To       netip.Addr   // their address here; the zero Addr means that they are left out
	ToPort   uint16       // the port there; 0 is the same
}

// ParseRule parses a rule: "10.96.0.10:80=127.0.0.1:8080", "10.96.0.10=127.0.0.1",
// "10.244.0.0/16=127.0.0.1" or "10.96.0.0/12=none".
func ParseRule(s string) (Rule, error) {
	from, to, ok := strings.Cut(s, "=")
	if !ok {
		return Rule{}, errors.New("must be ADDRESS=ADDRESS")
	}
	a, port, err := parseAddr(from)
	r := Rule{From: netip.PrefixFrom(a, a.BitLen()), FromPort: port}
	if err != nil {
		r.From, err = netip.ParsePrefix(from)
	}
	if err != nil {
		return Rule{}, fmt.Errorf("%s: must be an address, an address and a port, or a range", from)
	}
	if to == "none" {
		return r, nil
	}
	if r.To, r.ToPort, err = parseAddr(to); err != nil {
		return Rule{}, fmt.Errorf("%s: must be an address, an address and a port, or \"none\"", to)
	}
	return r, nil
}

// parseAddr parses an address with or without a port. Without a port, it returns port 0.
func parseAddr(s string) (netip.Addr, uint16, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return a, 0, nil
	}
	ap, err := netip.ParseAddrPort(s)
	if err == nil && ap.Port() == 0 {
		err = errors.New("port 0")
	}
	return ap.Addr(), ap.Port(), err
}

// At returns the address and port on this host for a. It returns false if a is left out.
func (m Mapping) At(a netip.AddrPort) (netip.AddrPort, bool) {
	for _, r := range m {
		if !r.From.Contains(a.Addr()) || r.FromPort != 0 && r.FromPort != a.Port() {
			continue
		}
		return netip.AddrPortFrom(r.To, cmp.Or(r.ToPort, a.Port())), r.To.IsValid()
	}

	return a, true
}
