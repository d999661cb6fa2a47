package check

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// The types of checks.
const (
	TCP   = "tcp"   // a connection can be made
	HTTP  = "http"  // a request is answered with one of certain codes
	HTTPS = "https" // the same over TLS
	GRPC  = "grpc"  // the service grpc.health.v1.Health answers SERVING
)

// Spec says what to ask and how often. Specs can be compared with ==.
type Spec struct {
	// Type is tcp, http, https or grpc.
	Type string `yaml:"type"`
	// Address and Port say where to ask. Invalid and zero mean the backend's own.
	Address Addr   `yaml:"address,omitempty"`
	Port    uint16 `yaml:"port,omitempty"`
	// Source is the address to ask from. Invalid leaves the choice to the kernel.
	Source Addr `yaml:"source,omitempty"`

	// Interval is the longest time between two checks. Zero means 2 s.
	Interval time.Duration `yaml:"interval,omitempty"`
	// Timeout bounds one check. Zero means 1 s.
	Timeout time.Duration `yaml:"timeout,omitempty"`
	// Retry is the time between two checks while the answers contradict the verdict. Zero means
	// Interval.
	Retry time.Duration `yaml:"retry,omitempty"`
	// Jitter is the maximum of the random time that is taken off each Interval. Retry is never
	// shorter. So a failure is noticed within Interval. Zero means a tenth of Interval, negative
	// none.
	Jitter time.Duration `yaml:"jitter,omitempty"`
	// Rise and Fall are how many answers in a row change the verdict. Zero means 2 and 3.
	Rise int `yaml:"rise,omitempty"`
	Fall int `yaml:"fall,omitempty"`

	// Path is the path of the GET request; empty means "/". For http and https.
	Path string `yaml:"path,omitempty"`
	// Host is the name of the virtual host, perhaps with a port. With TLS its name is the server
	// name (SNI). Empty means the address, and no SNI. For http, https and grpc.
	Host string `yaml:"host,omitempty"`
	// Status lists the right codes, such as "200-299 404". Empty means "200-299". The check follows
	// no redirection: its code counts. For http and https.
	Status string `yaml:"status,omitempty"`
	// Digest is the MD5 digest of the body in hexadecimal, as keepalived's genhash prints it. Empty
	// means that the body does not matter. For http and https.
	Digest string `yaml:"digest,omitempty"`
	// TLS uses TLS, as https always does. For grpc.
	TLS bool `yaml:"tls,omitempty"`
	// Verify requires a certificate that is valid for Host. By default a check verifies none,
	// because it only tests whether the server answers. For https and grpc.
	Verify bool `yaml:"verify,omitempty"`
	// CA is a PEM file with the certificates of authorities. Empty means the system's.
	CA string `yaml:"ca,omitempty"`
	// Service is the service to ask for. Empty means the server as a whole. For grpc.
	Service string `yaml:"service,omitempty"`
}

// Addr is an address that YAML leaves out if it is invalid.
type Addr struct{ netip.Addr }

// IsZero reports whether the address is left out.
func (a Addr) IsZero() bool { return !a.IsValid() }

// FieldError says which field of a [Spec] is wrong.
type FieldError struct {
	Field string // its name in YAML
	Err   error
}

// Error returns "path: must begin with /".
func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e *FieldError) Unwrap() error { return e.Err }

// WithDefaults fills in the defaults of fields that are not set.
func (s Spec) WithDefaults() Spec {
	s.Interval = cmp.Or(s.Interval, 2*time.Second)
	s.Timeout = cmp.Or(s.Timeout, time.Second)
	s.Retry = cmp.Or(s.Retry, s.Interval)
	s.Rise, s.Fall = cmp.Or(s.Rise, 2), cmp.Or(s.Fall, 3)
	if s.web() {
		s.Path, s.Status = cmp.Or(s.Path, "/"), cmp.Or(s.Status, "200-299")
	}
	return s
}

// Validate returns the wrong fields.
func (s Spec) Validate() []*FieldError {
	web := s.web()
	_, statusErr := parseStatus(s.Status)
	_, pathErr := s.url("host")
	var errs []*FieldError
	for _, rule := range []struct {
		ok          bool
		field, text string
	}{
		{web || s.Type == TCP || s.Type == GRPC, "type", "must be tcp, http, https or grpc"},
		{noneOrLong(s.Interval), "interval", "must be at least 1ms"},
		{noneOrLong(s.Timeout), "timeout", "must be at least 1ms"},
		{noneOrLong(s.Retry), "retry", "must be at least 1ms"},
		{s.Jitter <= s.WithDefaults().Interval, "jitter", "must be at most the interval"},
		{s.Path == "" || web && s.Path[0] == '/', "path", "must begin with / and is of http"},
		{!web || pathErr == nil, "path", fmt.Sprint(pathErr)},
		{s.Host == "" || s.Type != TCP, "host", "is of http, https and grpc"},
		{isHost(s.Host), "host", "must be the name of a host"},
		{s.Status == "" || web, "status", "is of http and https"},
		{s.Digest == "" || web && md5Hex(s.Digest), "digest", "must be an MD5 digest in hex"},
		{!s.TLS || s.Type == GRPC, "tls", "is of grpc; use the type https"},
		{!s.Verify || s.secure(), "verify", "needs TLS"},
		{s.CA == "" || s.Verify, "ca", "needs verify: true"},
		{s.Service == "" || s.Type == GRPC, "service", "is of grpc"},
		{statusErr == nil, "status", fmt.Sprint(statusErr)},
	} {
		if !rule.ok {
			errs = append(errs, &FieldError{rule.field, errors.New(rule.text)})
		}
	}
	if _, err := s.tlsConfig(); err != nil && s.Verify {
		errs = append(errs, &FieldError{"ca", err})
	}
	return errs
}

// url returns the URL for a host.
func (s Spec) url(host string) (*url.URL, error) {
	u, err := url.Parse(s.Type + "://" + host + s.Path)
	if e := (*url.Error)(nil); errors.As(err, &e) {
		err = e.Err // the rest of it repeats the path
	}
	return u, err
}

// isHost reports whether a text can be the name of a host in a request. Empty means no name.
func isHost(s string) bool {
	u, err := url.Parse("//" + s)
	return err == nil && u.Host == s && u.Path == ""
}

// noneOrLong reports whether a time is zero, or at least a millisecond.
func noneOrLong(d time.Duration) bool { return d == 0 || d >= time.Millisecond }

// web reports whether the check is an HTTP request.
func (s Spec) web() bool { return s.Type == HTTP || s.Type == HTTPS }

// secure reports whether the check uses TLS.
func (s Spec) secure() bool { return s.Type == HTTPS || s.Type == GRPC && s.TLS }

func md5Hex(s string) bool {
	return len(s) == 32 && strings.Trim(strings.ToLower(s), "0123456789abcdef") == ""
}

// codes is a range of status codes.
type codes struct{ first, last int }

// parseStatus reads a list of codes and ranges.
func parseStatus(text string) ([]codes, error) {
	var out []codes
	for _, word := range strings.Fields(text) {
		from, to, isRange := strings.Cut(word, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		if err != nil || err2 != nil || first < 100 || last > 999 || last < first {
			return nil, fmt.Errorf("%q is not a status code or a range of them", word)
		}
		out = append(out, codes{first, last})
	}
	return out, nil
}

// Target is an address and a question. Targets can be compared with ==.
type Target struct {
	Addr netip.AddrPort
	Spec Spec
}

// Target returns the target for a backend, with all defaults.
func (s Spec) Target(backend netip.AddrPort) Target {
	addr, port := backend.Addr(), backend.Port()
	if s.Address.IsValid() {
		addr = s.Address.Addr
	}
	port = cmp.Or(s.Port, port)
	s.Address, s.Port = Addr{}, 0
	return Target{netip.AddrPortFrom(addr, port), s.WithDefaults()}
}

// String returns "http 10.0.0.1:8080/healthz".
func (t Target) String() string { return t.Spec.Type + " " + t.Addr.String() + t.Spec.Path }

// host returns the address as the host of a URL, with its zone if it has one (RFC 6874).
func (t Target) host() string { return strings.Replace(t.Addr.String(), "%", "%25", 1) }
