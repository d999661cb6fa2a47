package servicemodel

import (
	"errors"
	"fmt"
	"net/netip"
)

// Validate checks the whole state and returns every problem joined in one error, each a
// *[FieldError]; nil if there is none. Services that claim the same address and port are no problem
// here; see [Table.Conflicts].
//
// What may be written more than one way is normalised rather than refused: host bits of ranges are
// ignored, and of endpoints that name one address and port twice one is used. IPv4-mapped IPv6
// addresses are refused: they are never seen on the wire, so whoever writes one means something
// else.
func (s State) Validate() error { return validate(s, s.editsSince(State{}), true) }

// validate checks the services in edits and, if asked to, the node.
func validate(s State, edits []edit, node bool) error {
	var p problems
	if node {
		p.checkNode(s.viewpoint())
	}
	for i := range edits {
		e := &edits[i]
		if e.service != nil {
			p.checkService(e.service)
		}
		p.checkEndpoints(e.name, e.endpoints, e.service == nil)
	}
	return errors.Join(p.found...)
}

// problems collects what is wrong with one object after the other.
type problems struct {
	service Name          // the service being checked; zero if it is the node
	object  func() string // the name of the object being checked
	found   []error
}

func (p *problems) add(field string, value any, reason string) {
	text := ""
	if value != nil {
		text = fmt.Sprint(value)
	}
	p.found = append(p.found, &FieldError{
		Service: p.service, Object: p.object(), Field: field, Value: text, Reason: reason,
	})
}

// path returns the path of a field in an element of a list.
func path(list string, i int, field string) string {
	s := fmt.Sprintf("%s[%d]", list, i)
	if field != "" {
		s += "." + field
	}
	return s
}

// maxName is the longest name, that of a DNS subdomain (RFC 1123).
const maxName = 253

// checkText checks a name. Names become comments in the kernel, next to "/" and ":", and within
// quotes.
func checkText(s string) (reason string) {
	if len(s) > maxName {
		return fmt.Sprintf("longer than %d bytes", maxName)
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || c == '/' || c == ':' || c == '"' {
			return `only printable ASCII without spaces, "/", ":" and quotes is allowed`
		}
	}
	return ""
}

func (p *problems) checkName(n Name) {
	for _, part := range [...]struct {
		field, text string
	}{{"name.namespace", n.Namespace}, {"name.name", n.Name}} {
		if part.text == "" {
			p.add(part.field, nil, "required")
		} else if reason := checkText(part.text); reason != "" {
			p.add(part.field, quote(part.text), reason)
		}
	}
}

func quote(s string) string { return fmt.Sprintf("%q", s) }

// addrKind says which special addresses a field takes.
type addrKind int

const (
	anyUnicast addrKind = iota // also link-local ones
	routable                   // no link-local ones
	ofHost                     // also link-local ones, and IPv4 loopback
)

// checkAddr returns what is wrong with an address.
func checkAddr(a netip.Addr, kind addrKind) (reason string) {
	switch {
	case !a.IsValid():
		return "required"
	case a.Zone() != "":
		return "must not have a zone"
	case a.Is4In6():
		return "is an IPv4-mapped IPv6 address; give the IPv4 address"
	case a.IsUnspecified():
		return "must not be the unspecified address"
	case kind == ofHost && a.IsLoopback() && a.Is4():
	case kind == ofHost && a.IsLoopback():
		return "must not be ::1: the kernel cannot route from there to endpoints"
	case a.IsLoopback():
		return "must not be a loopback address"
	case a.IsMulticast():
		return "must not be a multicast address"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "must not be the broadcast address"
	case kind == routable && a.IsLinkLocalUnicast():
		return "must not be a link-local address"
	}
	return ""
}

func (p *problems) checkAddr(field string, i int, sub string, a netip.Addr, kind addrKind) {
	if reason := checkAddr(a, kind); reason != "" {
		var value any
		if a.IsValid() {
			value = a
		}
		p.add(path(field, i, sub), value, reason)
	}
}

func (p *problems) checkRanges(field string, ranges []netip.Prefix) {
	for i, r := range ranges {
		switch {
		case !r.IsValid():
			p.add(path(field, i, ""), nil, "not a valid range")
		case r.Addr().Is4In6():
			p.add(path(field, i, ""), r,
				"is a range of IPv4-mapped IPv6 addresses; give the IPv4 range")
		}
	}
}

// repeats yields the index of each element whose key an earlier one has too, and the index of the
// first such.
func repeats[K comparable](n int, key func(int) (k K, counts bool)) func(yield func(i,
	first int) bool) {
	return func(yield func(i, first int) bool) {
		if n < 2 {
			return
		}
		seen := make(map[K]int, n)
		for i := range n {
			k, counts := key(i)
			if !counts {
				continue
			}
			if first, again := seen[k]; again {
				if !yield(i, first) {
					return
				}
				continue
			}
			seen[k] = i
		}
	}
}
