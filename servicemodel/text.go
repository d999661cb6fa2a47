package servicemodel

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Types whose text is one word or one line have MarshalText and UnmarshalText, and JSON uses the
// same text; see docs/json.md.

// nameOf returns value's name, or a kind and a number, such as "verdict 9". The names of a type are
// indexed by its values.
func nameOf[T ~uint8](kind string, value T, names []string) string {
	if int(value) < len(names) && names[value] != "" {
		return names[value]
	}
	return kind + " " + uitoa(uint16(value))
}

// marshalName returns value's name, or an error if it has no name. A zero without a name is empty.
func marshalName[T ~uint8](value T, names []string) ([]byte, error) {
	if int(value) < len(names) && (value == 0 || names[value] != "") {
		return []byte(names[value]), nil
	}
	return nil, fmt.Errorf("%v: has no name", value)
}

// unmarshalName sets *value to the value with that name.
func unmarshalName[T ~uint8](value *T, text []byte, names []string) error {
	if i := slices.Index(names, string(text)); i >= 0 && len(text) > 0 {
		*value = T(i)
		return nil
	}

	return fmt.Errorf("%q: must be %s", text, oneOf(filter(names, func(name string) bool {
		return name != ""
	})))
}

// oneOf returns "a, b or c".
func oneOf[T ~string](words []T) string {
	last := len(words) - 1
	if last == 0 {
		return string(words[0])
	}
	return list(words[:last], ", ") + " or " + string(words[last])
}

// MarshalText returns "tcp", "udp" or "sctp", or a number, such as "protocol 1". The zero value has
// an empty text.
func (p Protocol) MarshalText() ([]byte, error) {
	if p == 0 {
		return nil, nil
	}
	return []byte(p.String()), nil
}

// UnmarshalText reads a name in lower or upper case, or the number form of [Protocol.String].
func (p *Protocol) UnmarshalText(text []byte) error {
	if number, ok := strings.CutPrefix(string(text), "protocol "); ok {
		if n, err := strconv.ParseUint(number, 10, 8); err == nil && n > 0 {
			*p = Protocol(n)
			return nil
		}
	}

	return unmarshalName(p, bytes.ToLower(text), protocolNames)
}

// MarshalText returns "IPv4" or "IPv6".
func (f Family) MarshalText() ([]byte, error) { return marshalName(f, familyNames) }

// UnmarshalText is the inverse of MarshalText.
func (f *Family) UnmarshalText(text []byte) error { return unmarshalName(f, text, familyNames) }

var familyNames = []string{IPv4: "IPv4", IPv6: "IPv6"}

// MarshalText returns "namespace/name".
func (n Name) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText is the inverse of [Name.String]. It does not check whether the name is valid.
func (n *Name) UnmarshalText(text []byte) error {
	namespace, name, ok := strings.Cut(string(text), "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("%q: must be NAMESPACE/NAME", text)
	}
	*n = Name{Namespace: namespace, Name: name}
	return nil
}

// MarshalText returns the key as [FrontendKey.String] does. The zero key is empty.
func (k FrontendKey) MarshalText() ([]byte, error) {
	if k == (FrontendKey{}) {
		return nil, nil
	}
	if !k.Addr.IsValid() || k.Protocol == 0 {
		return nil, fmt.Errorf("%v: has no text", k)
	}
	return []byte(k.String()), nil
}

// UnmarshalText is the inverse of [FrontendKey.String]. It reads "10.0.0.1:80/tcp",
// "10.0.0.1:10000-20000/udp" for a range, and "*4:30080/tcp" or "*6:30080/tcp" for a node port.
func (k *FrontendKey) UnmarshalText(text []byte) error {
	at, protocol, ok := strings.Cut(string(text), "/")
	if !ok {
		return fmt.Errorf("%q: must be ADDRESS:PORT/PROTOCOL", text)
	}
	var p Protocol
	if err := p.UnmarshalText([]byte(protocol)); err != nil {
		return fmt.Errorf("%q: protocol %w", text, err)
	}
	var end uint64
	if i := strings.LastIndexByte(at, '-'); i > strings.LastIndexByte(at, ':') {
		var err error
		if end, err = strconv.ParseUint(at[i+1:], 10, 16); err != nil || end == 0 {
			return fmt.Errorf("%q: the last port must be between 1 and 65535", text)
		}
		at = at[:i]
	}

	for _, f := range families {
		if port, ok := strings.CutPrefix(at, star(f)); ok {
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil {
				return fmt.Errorf("%q: port: %w", text, err)
			}
			*k = FrontendKey{Addr: unspecified(f), Port: uint16(n), Protocol: p,
				EndPort: uint16(end)}
			return nil
		}
	}

	a, err := netip.ParseAddrPort(at)
	if err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	*k = FrontendKey{Addr: a.Addr(), Port: a.Port(), Protocol: p, EndPort: uint16(end)}
	return nil
}

// MarshalText returns the name of the kind.
func (k Kind) MarshalText() ([]byte, error) { return marshalName(k, kindNames) }

// UnmarshalText is the inverse of MarshalText.
func (k *Kind) UnmarshalText(text []byte) error { return unmarshalName(k, text, kindNames) }

// MarshalText returns "reject", "drop", "cluster" or "local".
func (v Verdict) MarshalText() ([]byte, error) { return marshalName(v, verdictNames) }

// UnmarshalText is the inverse of MarshalText.
func (v *Verdict) UnmarshalText(text []byte) error { return unmarshalName(v, text, verdictNames) }

// MarshalText returns the set's members, such as "host,outside", or "none" or "all".
func (o Origins) MarshalText() ([]byte, error) { return marshalName(o, originNames) }

// UnmarshalText is the inverse of MarshalText.
func (o *Origins) UnmarshalText(text []byte) error { return unmarshalName(o, text, originNames) }

// MarshalText returns "default", "leave", "drain 30s" or "cut". It omits the time if the mode does
// not use it.
func (p ConnectionPolicy) MarshalText() ([]byte, error) {
	if p.Mode > CutConnections {
		return nil, fmt.Errorf("%v: has no name", p)
	}
	return []byte(p.String()), nil
}

// IsZero reports whether p is the default; it ignores the time.
func (p ConnectionPolicy) IsZero() bool { return p.Mode == ConnectionsDefault }

// UnmarshalText accepts "default" and the words of [ParseConnectionPolicy].
func (p *ConnectionPolicy) UnmarshalText(text []byte) (err error) {
	if string(text) == "default" {
		*p = ConnectionPolicy{}
		return nil
	}

	*p, err = ParseConnectionPolicy(string(text))
	return err
}

// IsZero reports whether affinity is off; it ignores the other fields.
func (a SessionAffinity) IsZero() bool { return !a.ClientIP }

// bits returns the number of bits of an address in family f that identify a client, 0 for the whole
// address.
func (a SessionAffinity) bits(f Family) uint8 {
	switch {
	case f == IPv4 && a.Bits4 < 32:
		return a.Bits4
	case f == IPv6 && a.Bits6 < 128:
		return a.Bits6
	}

	return 0
}

// MarshalText returns "none", or the time that a client is remembered, such as "3h0m0s", or
// "default" for the default of three hours. The bits that identify a client and the whole service
// follow: "3h0m0s ipv4/24 ipv6/56 service". It omits the other fields if affinity is off.
func (a SessionAffinity) MarshalText() ([]byte, error) {
	if !a.ClientIP {
		return []byte("none"), nil
	}
	text := "default"
	if a.Timeout != 0 {
		text = a.Timeout.String()
	}
	if a.Bits4 != 0 {
		text += " ipv4/" + uitoa(uint16(a.Bits4))
	}
	if a.Bits6 != 0 {
		text += " ipv6/" + uitoa(uint16(a.Bits6))
	}
	if a.WholeService {
		text += " service"
	}
	return []byte(text), nil
}

// UnmarshalText is the inverse of MarshalText.
func (a *SessionAffinity) UnmarshalText(text []byte) error {
	first, rest, _ := strings.Cut(string(text), " ")
	read := SessionAffinity{ClientIP: true}
	switch first {
	case "none":
		read = SessionAffinity{}
	case "default":
	default:
		d, err := time.ParseDuration(first)
		if err != nil || d == 0 {
			return fmt.Errorf("%q: must be none, default or a time such as 30s", text)
		}
		read.Timeout = d
	}

	if rest != "" && read.ClientIP {
		for word := range strings.SplitSeq(rest, " ") {
			if !read.word(word) {
				return fmt.Errorf("%q: %q must be ipv4/BITS, ipv6/BITS or service", text, word)
			}
		}
	}

	*a = read
	return nil
}

// word sets the field to which a word of the text refers.
func (a *SessionAffinity) word(word string) (ok bool) {
	family, bits, _ := strings.Cut(word, "/")
	n, err := strconv.ParseUint(bits, 10, 8)
	switch {
	case word == "service":
		a.WholeService = true
	case err != nil || n == 0:
		return false
	case family == "ipv4" && n <= 32:
		a.Bits4 = uint8(n)
	case family == "ipv6" && n <= 128:
		a.Bits6 = uint8(n)
	default:
		return false
	}

	return true
}

func uitoa(n uint16) string { return strconv.Itoa(int(n)) }
