package servicemodel

import (
	"errors"
	"fmt"
	"net/netip"
)

// Validate checks the whole state. It joins all problems in one error, each a *[FieldError], or
// returns nil. Services that claim the same address and port are no problem here; see
// [Table.Conflicts].
//
// Some inputs are normalised and not refused: the host bits of ranges are ignored, and if endpoints
// have the same address and port, one of them is used. IPv4-mapped IPv6 addresses are refused: they
// never occur on the wire, so they are probably a mistake.
func (s State) Validate() error { return validate(s, s.editsSince(State{}), true) }

// validate checks the edits and, if asked to, the node.
func validate(s State, edits []edit, node bool) error {
	var p problems
	if node {
		p.checkNode(s.viewpoint())
	}
	for i := range edits {
		e := &edits[i]
		if e.redefined && e.service != nil {
			p.checkService(e.service)
		}
		if len(e.endpoints) == 0 {
			continue
		}
		p.service, p.object = e.name, func() string { return "endpoints " + e.name.String() }
		if e.service == nil {
			p.checkName(e.name)
		}
		p.checkEndpoints(e.endpoints, true)
	}
	return errors.Join(p.found...)
}

// problems collects the problems of one object after the other.
type problems struct {
	service Name          // the service being checked; zero for the node
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

// path returns the path of a field in an element of a list. A negative index means an object
// outside a list.
func path(list string, i int, field string) string {
	if i < 0 {
		return field
	}
	s := fmt.Sprintf("%s[%d]", list, i)
	if field != "" {
		s += "." + field
	}
	return s
}

// maxName is the length of the longest name, a DNS subdomain (RFC 1123).
const maxName = 253

// checkText checks a name. Names become comments in the kernel, next to "/" and ":", and within
// quotes.
func (p *problems) checkText(field, text string, required bool) {
	if text == "" && required {
		p.add(field, nil, "required")
	}
	if reason := textProblem(text); reason != "" {
		p.add(field, quote(text), reason)
	}
}

func textProblem(s string) string {
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
		p.checkText(part.field, part.text, true)
	}
}

func quote(s string) string { return fmt.Sprintf("%q", s) }

// addrKind says which special addresses a field allows.
type addrKind int

const (
	anyUnicast addrKind = iota // also link-local ones
	routable                   // no link-local ones
	ofHost                     // also link-local ones, and IPv4 loopback
)

// checkAddr checks the address in a field of an element of a list.
func (p *problems) checkAddr(list string, i int, field string, a netip.Addr, kind addrKind) {
	reason := ""
	switch {
	case !a.IsValid():
		p.add(path(list, i, field), nil, "required")
	case a.Zone() != "":
		reason = "must not have a zone"
	case a.Is4In6():
		reason = "is an IPv4-mapped IPv6 address; give the IPv4 address"
	case a.IsUnspecified():
		reason = "must not be the unspecified address"
	case kind == ofHost && a.IsLoopback() && a.Is4():
	case kind == ofHost && a.IsLoopback():
		reason = "must not be ::1: the kernel cannot route from there to endpoints"
	case a.IsLoopback():
		reason = "must not be a loopback address"
	case a.IsMulticast():
		reason = "must not be a multicast address"
	case a == broadcast:
		reason = "must not be the broadcast address"
	case kind == routable && a.IsLinkLocalUnicast():
		reason = "must not be a link-local address"
	}
	if reason != "" {
		p.add(path(list, i, field), a, reason)
	}
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

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

// repeats yields the index of each element whose key occurs earlier, and the index of the first
// element with that key.
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
