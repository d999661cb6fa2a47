package rendering

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// MaxLen is the maximum length of a comment in bytes. The user data of an element or a rule has 256
// bytes (NFT_USERDATA_MAXLEN), and package nft writes a long comment as two attributes. With a name
// of up to 191 bytes, as [servicemodel.PortName] allows, the comment fits.
const MaxLen = 256 - 2 - 1 - 2

// kinds are the words for the kinds of frontends.
var kinds = [...]string{
	servicemodel.ClusterIP:    "cluster IP",
	servicemodel.LoadBalancer: "loadbalancer IP",
	servicemodel.ExternalIP:   "external IP",
	servicemodel.NodePort:     "node port",
	servicemodel.HostIP:       "host IP",
}

// usualMasquerade returns the masquerading that comments of this kind do not mention.
func usualMasquerade(k servicemodel.Kind) servicemodel.Origins {
	if k == servicemodel.ClusterIP {
		return servicemodel.FromHost | servicemodel.FromOutside
	}
	return servicemodel.FromAnywhere
}

// Comment returns the comment of a frontend. more are words that a backend adds: at most 23 bytes,
// including a space before each word. If the comment would be longer than [MaxLen], it uses short
// words: "v=2/0 m=5 a=60/o+" stands for "internal=cluster external=reject masquerade=pods,outside
// affinity=60/24+service".
func Comment(f *servicemodel.Frontend, more ...string) string {
	var room [MaxLen + 64]byte
	b := appendComment(room[:0], f, more, false)
	if len(b) > MaxLen {
		b = appendComment(room[:0], f, more, true)
	}
	return string(b)
}

func appendComment(b []byte, f *servicemodel.Frontend, more []string, short bool) []byte {
	n := f.Service
	b = append(append(append(b, n.Name.Namespace...), '/'), n.Name.Name...)
	if n.Port != "" {
		b = append(append(b, ':'), n.Port...)
	}
	b = append(append(b, ' '), kinds[f.Kind]...)
	b = appendVerdicts(b, f, short)
	b = appendMasquerade(b, f, short)
	switch {
	case f.Shifted && short:
		b = append(b, " s"...)
	case f.Shifted:
		b = append(b, " shifted"...)
	}
	if f.Affinity != 0 {
		name := " affinity="
		if short {
			name = " a="
		}
		b = strconv.AppendInt(append(b, name...), int64(f.Affinity/time.Second), 10)
		b = appendAffinity(b, f, short)
	}

	for _, word := range more {
		b = append(append(b, ' '), word...)
	}
	return b
}

// shorts are the short words for masqueraded origins: 8 words for each policy.
const shorts = "0123456789abcdefghijklmnopqrstuvwxyzABCD"

// policies are the masquerade policies in the order of their short words.
var policies = []servicemodel.MasqueradePolicy{servicemodel.MasqueradeDefault,
	servicemodel.MasqueradeAlways, servicemodel.MasqueradeNotPods, servicemodel.MasqueradeHost,
	servicemodel.MasqueradeNever}

// appendMasquerade appends the masqueraded origins of a frontend, and the policy of its service, if
// any: " masquerade=host/never" or " m=y".
func appendMasquerade(b []byte, f *servicemodel.Frontend, short bool) []byte {
	policy := f.MasqueradePolicy
	switch {
	case policy == servicemodel.MasqueradeDefault && f.Masquerade == usualMasquerade(f.Kind):
		return b
	case short:
		return append(append(b, " m="...),
			shorts[8*max(0, slices.Index(policies, policy))+int(f.Masquerade&7)])
	}

	b = append(append(b, " masquerade="...), f.Masquerade.String()...)
	if policy != servicemodel.MasqueradeDefault {
		b = append(append(b, '/'), policy...)
	}
	return b
}

// appendAffinity appends the properties of the affinity of a frontend after the time: "/24+service"
// for clients of a prefix at the whole service, or "/o+" with the number in base 36.
func appendAffinity(b []byte, f *servicemodel.Frontend, short bool) []byte {
	word, base := wholeService, 10
	if short {
		word, base = wholeService[:1], 36
	}
	if f.AffinityBits != 0 {
		b = strconv.AppendUint(append(b, '/'), uint64(f.AffinityBits), base)
	}
	if f.AffinityService {
		b = append(b, word...)
	}
	return b
}

const wholeService = "+service"

func appendVerdicts(b []byte, f *servicemodel.Frontend, short bool) []byte {
	switch {
	case f.Internal == servicemodel.BalanceCluster && f.External == servicemodel.BalanceCluster:
		return b
	case short:
		b = strconv.AppendUint(append(b, " v="...), uint64(f.Internal), 10)
		return strconv.AppendUint(append(b, '/'), uint64(f.External), 10)
	case f.Internal == f.External:
		return append(append(b, " verdict="...), f.Internal.String()...)
	}

	b = append(append(b, " internal="...), f.Internal.String()...)
	return append(append(b, " external="...), f.External.String()...)
}

// ParseComment is the inverse of [Comment]. It returns the frontend that a comment describes, with
// the given key and without source ranges. It passes a word outside this grammar to more, which
// reports whether the word belongs to the backend. If more is nil, no such words are allowed.
func ParseComment(s string, k servicemodel.FrontendKey, more func(word string) bool) (
	*servicemodel.Frontend, error) {
	name, rest, _ := strings.Cut(s, " ")
	service, err := ParsePortName(name, k.Protocol)
	if err != nil {
		return nil, fmt.Errorf("comment %q: %w", s, err)
	}
	f := &servicemodel.Frontend{Key: k, Service: service, Internal: servicemodel.BalanceCluster,
		External: servicemodel.BalanceCluster}
	if f.Kind, rest, err = cutKind(rest); err != nil {
		return nil, fmt.Errorf("comment %q: %w", s, err)
	}
	f.Masquerade = usualMasquerade(f.Kind)
	for word := range strings.FieldsSeq(rest) {
		name, value, _ := strings.Cut(word, "=")
		if !set(f, name, value) && (more == nil || !more(word)) {
			return nil, fmt.Errorf("comment %q: unknown word %q", s, word)
		}
	}

	return f, nil
}

// ParsePortName reads the name of a service port: "namespace/name:port" or "namespace/name".
func ParsePortName(s string, p servicemodel.Protocol) (servicemodel.PortName, error) {
	namespace, name, ok := strings.Cut(s, "/")
	name, port, _ := strings.Cut(name, ":")
	if !ok || name == "" {
		return servicemodel.PortName{}, fmt.Errorf("%q is not the name of a service port", s)
	}
	return servicemodel.PortName{Name: servicemodel.Name{Namespace: namespace, Name: name},
		Port: port, Protocol: p}, nil
}

// cutKind returns the kind at the beginning of s, and the rest of s.
func cutKind(s string) (servicemodel.Kind, string, error) {
	for kind, words := range kinds {
		if rest, ok := strings.CutPrefix(s, words); ok && (rest == "" || rest[0] == ' ') {
			return servicemodel.Kind(kind), rest, nil
		}
	}

	return 0, "", errors.New("it names no kind of frontend")
}

// set sets one field of a frontend from a word of the grammar.
func set(f *servicemodel.Frontend, name, value string) (ok bool) {
	switch name {
	case "verdict":
		f.Internal, ok = named(value, servicemodel.BalanceLocal)
		f.External = f.Internal
	case "internal":
		f.Internal, ok = named(value, servicemodel.BalanceLocal)
	case "external":
		f.External, ok = named(value, servicemodel.BalanceLocal)
	case "v":
		internal, external, _ := strings.Cut(value, "/")
		if f.Internal, ok = numbered(internal, servicemodel.BalanceLocal); ok {
			f.External, ok = numbered(external, servicemodel.BalanceLocal)
		}
	case "masquerade":
		origins, policy, stated := strings.Cut(value, "/")
		f.Masquerade, ok = named(origins, servicemodel.FromAnywhere)
		f.MasqueradePolicy = servicemodel.MasqueradePolicy(policy)
		ok = ok && stated == (slices.Index(policies, f.MasqueradePolicy) > 0)
	case "m":
		if i := strings.Index(shorts, value); i >= 0 && len(value) == 1 {
			f.Masquerade, f.MasqueradePolicy = servicemodel.Origins(i%8), policies[i/8]
			ok = true
		}
	case "shifted", "s":
		ok = value == "" && f.Key.EndPort != 0 && !f.Shifted
		f.Shifted = true
	case "affinity":
		ok = setAffinity(f, value, wholeService, 10)
	case "a":
		ok = setAffinity(f, value, wholeService[:1], 36)
	}

	return ok
}

// named returns the value, from 0 to last, whose name is s.
func named[T interface {
	~uint8
	String() string
}](s string, last T) (T, bool) {
	for v := range last + 1 {
		if v.String() == s {
			return v, true
		}
	}

	return 0, false
}

// numbered returns the value, from 0 to last, whose number is s.
func numbered[T ~uint8](s string, last T) (T, bool) {
	n, err := strconv.ParseUint(s, 10, 8)
	return T(n), err == nil && T(n) <= last
}

// setAffinity is the inverse of appendAffinity, and of the seconds before it.
func setAffinity(f *servicemodel.Frontend, value, whole string, base int) bool {
	value, f.AffinityService = strings.CutSuffix(value, whole)
	value, bits, has := strings.Cut(value, "/")
	n, err := strconv.ParseUint(bits, base, 8)
	if has && (err != nil || n == 0) {
		return false
	}
	f.AffinityBits = uint8(n)
	seconds, err := strconv.ParseUint(value, 10, 32)
	f.Affinity = time.Duration(seconds) * time.Second
	return err == nil && seconds > 0
}
