// Package comment is the one grammar of the comments by which backends keep in the kernel what a
// frontend is:
//
//	default/web:http cluster IP
//	default/web:http node port internal=cluster external=local masquerade=host affinity=10800
//
// A comment begins with the service port and the kind of the frontend, in the words of kube-proxy,
// which has none for node ports. What is usual is left out: both verdicts "cluster", and the
// masquerading of [usualMasquerade]. If the verdicts are equal, one word stands for both:
// "verdict=reject". A backend may add words of its own.
//
// People read comments in nft's and iptables' listings, and backends read them back. The key of the
// frontend and its sources are not in them: the object that carries the comment says those.
package comment

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

const (
	// MaxLen is the longest comment in bytes: the user data of an element or a rule has 256
	// (NFT_USERDATA_MAXLEN), and package nft writes a long comment as two attributes.
	MaxLen = 256 - 2 - 1 - 2
	// MaxName is the longest name of a service port, with its namespace, whose comment fits
	// whatever else it says. Kubernetes allows 63 bytes each for namespace, name and port.
	MaxName = 63 + 1 + 63 + 1 + 63
)

// kinds are the words for the kinds of frontends.
var kinds = [...]string{
	servicemodel.ClusterIP:    "cluster IP",
	servicemodel.LoadBalancer: "loadbalancer IP",
	servicemodel.ExternalIP:   "external IP",
	servicemodel.NodePort:     "node port",
	servicemodel.HostIP:       "host IP",
}

// usualMasquerade returns the masquerading that is not written for a kind.
func usualMasquerade(k servicemodel.Kind) servicemodel.Origins {
	if k == servicemodel.ClusterIP {
		return servicemodel.FromHost | servicemodel.FromOutside
	}
	return servicemodel.FromAnywhere
}

// Of returns the comment of a frontend, with the words that a backend adds: at most 25 bytes, with
// a space before each. A comment that would be longer than [MaxLen] is written in short:
// "v=2/0 m=5 a=60" stands for "internal=cluster external=reject masquerade=pods,outside
// affinity=60".
func Of(f *servicemodel.Frontend, more ...string) string {
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
	switch {
	case f.Masquerade == usualMasquerade(f.Kind):
	case short:
		b = strconv.AppendUint(append(b, " m="...), uint64(f.Masquerade), 10)
	default:
		b = append(append(b, " masquerade="...), f.Masquerade.String()...)
	}
	if f.Affinity != 0 {
		name := " affinity="
		if short {
			name = " a="
		}
		b = strconv.AppendInt(append(b, name...), int64(f.Affinity/time.Second), 10)
	}
	for _, word := range more {
		b = append(append(b, ' '), word...)
	}
	return b
}

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

// Parse is the inverse of [Of]: it returns the frontend with the given key that a comment is about,
// without its sources. A word that is not of this grammar is given to more, which reports whether
// it is one of the backend's; nil knows none.
func Parse(s string, k servicemodel.FrontendKey, more func(word string) bool) (
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

// cutKind reads the kind that s begins with, and returns what is behind it.
func cutKind(s string) (servicemodel.Kind, string, error) {
	for kind, words := range kinds {
		if rest, ok := strings.CutPrefix(s, words); ok && (rest == "" || rest[0] == ' ') {
			return servicemodel.Kind(kind), rest, nil
		}
	}
	return 0, "", errors.New("it names no kind of frontend")
}

// set sets the field of a frontend that a word of the grammar is about.
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
		f.Masquerade, ok = named(value, servicemodel.FromAnywhere)
	case "m":
		f.Masquerade, ok = numbered(value, servicemodel.FromAnywhere)
	case "affinity", "a":
		f.Affinity, ok = seconds(value)
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

func seconds(s string) (time.Duration, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return time.Duration(n) * time.Second, err == nil && n > 0
}
