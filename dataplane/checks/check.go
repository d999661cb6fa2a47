package checks

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Type is the protocol of a check.
type Type string

// The types of checks.
const (
	// TCP passes if a connection can be established.
	TCP Type = "tcp"
	// HTTP passes if the answer to a request over HTTP 1.1 has one of the codes in [Check.Status].
	HTTP Type = "http"
	// HTTPS is HTTP over TLS.
	HTTPS Type = "https"
	// GRPC passes if the server's health service (grpc.health.v1.Health) answers SERVING.
	GRPC Type = "grpc"
	// UDP passes if a datagram gets the required answer or, if none is required, no ICMP error.
	UDP Type = "udp"
)

// types are all types.
var types = []Type{TCP, HTTP, HTTPS, GRPC, UDP}

// shortest is the minimum of Interval, Retry and Timeout.
const shortest = time.Millisecond

// Check describes a health check and its intervals. Checks can be compared with ==.
type Check struct {
	Type Type
	// Address and Port are the destination of the check. The zero values mean the endpoint's own
	// address and port.
	Address netip.Addr
	Port    uint16
	// Source is the source address of the check. If it is invalid, the kernel chooses.
	Source netip.Addr

	// Interval is the maximum time from the start of a check to the start of the next check. Zero
	// means 2 s.
	Interval time.Duration
	// Timeout limits one check. Zero means 1 s.
	Timeout time.Duration
	// Retry replaces Interval while the results contradict the state. Zero means Interval.
	Retry time.Duration
	// Jitter is the maximum by which each Interval is shortened at random. An interval never
	// becomes shorter than Retry. It only shortens intervals, so a failure is always noticed within
	// Interval. Zero means a tenth of Interval, negative none.
	Jitter time.Duration
	// Rise and Fall are the numbers of successes and failures in a row that change the state. Zero
	// means 2 and 3.
	Rise, Fall int

	// Method and Path are the method and path of the request. Empty means "GET" and "/". For http
	// and https.
	Method, Path string
	// Host is the name of the virtual host, perhaps with a port. Empty means the address. For http,
	// https and grpc.
	Host string
	// Status lists the accepted codes, such as "200-299 404". Empty means "200-299". The check does
	// not follow redirects: the code of the redirect counts. For http and https.
	Status string
	// Digest is the MD5 digest of the body in hexadecimal, as keepalived's genhash prints it. If it
	// is empty, the body does not matter. For http and https.
	Digest string
	// Service is the gRPC service whose health is requested. Empty means the health of the server
	// as a whole. For grpc.
	Service string

	// TLS makes the check use TLS, as https always does. For grpc.
	TLS bool
	// ServerName is the name in the TLS handshake (SNI). Empty means the name in Host, if any.
	ServerName string
	// Verify requires a certificate that is valid for ServerName, or for the address if there is no
	// name. By default, certificates are not verified, because a check only tests whether the
	// server answers.
	Verify bool
	// CA is a PEM file of CA certificates. Every check reads the file. Empty means the CAs of
	// [Config.TLS].
	CA string

	// Payload is the datagram to send. For udp.
	Payload string
	// Reply requires an answer. By default, a target passes if it stays silent until the timeout,
	// and fails only on an ICMP error. For udp.
	Reply bool
	// Answer is the required prefix of the answer. It implies Reply. For udp.
	Answer string
}

// WithDefaults fills in the defaults of fields that are not set.
func (c Check) WithDefaults() Check {
	c.Interval = cmp.Or(c.Interval, 2*time.Second)
	c.Timeout = cmp.Or(c.Timeout, time.Second)
	c.Retry = cmp.Or(c.Retry, c.Interval)
	c.Jitter = cmp.Or(c.Jitter, c.Interval/10)
	c.Rise, c.Fall = cmp.Or(c.Rise, 2), cmp.Or(c.Fall, 3)
	if c.web() {
		c.Method, c.Path = cmp.Or(c.Method, "GET"), cmp.Or(c.Path, "/")
		c.Status = cmp.Or(c.Status, "200-299")
	}

	if c.secure() && c.ServerName == "" {
		c.ServerName = (&url.URL{Host: c.Host}).Hostname() // Host may have a port
	}
	c.Reply = c.Reply || c.Answer != ""
	return c
}

// Validate joins a *[servicemodel.FieldError] for each wrong field. It reads the file CA.
func (c Check) Validate() error { return joined(c.faults()) }

// faults returns the wrong fields.
func (c Check) faults() []*servicemodel.FieldError {
	full := c.WithDefaults()
	_, statusErr := parseStatus(full.Status)
	_, pathErr := full.uri()
	_, tlsErr := full.tlsConfig(nil)
	faults := c.misplaced()
	for _, rule := range []struct {
		ok                   bool
		field, value, reason string
	}{
		{slices.Contains(types, c.Type), "type", string(c.Type),
			"must be tcp, http, https, grpc or udp"},
		{full.Interval >= shortest, "interval", c.Interval.String(), "must be at least 1ms"},
		{full.Timeout >= shortest, "timeout", c.Timeout.String(), "must be at least 1ms"},
		{c.Retry == 0 || c.Retry >= shortest, "retry", c.Retry.String(), "must be at least 1ms"},
		{c.Jitter <= max(full.Interval, 0), "jitter", c.Jitter.String(),
			"must be at most the interval"},
		{c.Rise >= 0, "rise", strconv.Itoa(c.Rise), "must not be negative"},
		{c.Fall >= 0, "fall", strconv.Itoa(c.Fall), "must not be negative"},
		{isMethod(c.Method), "method", c.Method, "must be the name of a method in capitals"},
		{!c.web() || pathErr == nil, "path", "", fmt.Sprint(pathErr)},
		{isHost(c.Host), "host", c.Host, "must be the name of a host"},
		{statusErr == nil, "status", "", fmt.Sprint(statusErr)},
		{c.Digest == "" || isMD5(c.Digest), "digest", c.Digest, "must be an MD5 digest in hex"},
		{c.CA == "" || c.Verify, "ca", c.CA, "needs verify: true"},
		{!c.Verify || tlsErr == nil, "ca", "", fmt.Sprint(tlsErr)},
	} {
		if !rule.ok {
			faults = append(faults, fault(rule.field, rule.value, rule.reason))
		}
	}

	return faults
}

// misplaced returns the fields that the type of the check does not have.
func (c Check) misplaced() (faults []*servicemodel.FieldError) {
	web, isGRPC, isUDP := c.web(), c.Type == GRPC, c.Type == UDP
	for _, f := range []struct {
		set, ok          bool
		field, value, of string
	}{
		{c.Method != "", web, "method", c.Method, "http and https"},
		{c.Path != "", web, "path", c.Path, "http and https"},
		{c.Host != "", web || isGRPC, "host", c.Host, "http, https and grpc"},
		{c.Status != "", web, "status", c.Status, "http and https"},
		{c.Digest != "", web, "digest", c.Digest, "http and https"},
		{c.Service != "", isGRPC, "service", c.Service, "grpc"},
		{c.TLS, isGRPC, "tls", "", "grpc; for http use the type https"},
		{c.ServerName != "", c.secure(), "serverName", c.ServerName, "https, and grpc with tls"},
		{c.Verify, c.secure(), "verify", "", "https, and grpc with tls"},
		{c.Payload != "", isUDP, "payload", "", "udp"},
		{c.Reply, isUDP, "reply", "", "udp"},
		{c.Answer != "", isUDP, "answer", "", "udp"},
	} {
		if f.set && !f.ok {
			faults = append(faults, fault(f.field, f.value, "is only for "+f.of))
		}
	}

	return faults
}

// uri returns the path with its query.
func (c Check) uri() (*url.URL, error) {
	if !strings.HasPrefix(c.Path, "/") {
		return nil, fmt.Errorf("%q must begin with /", c.Path)
	}
	u, err := url.ParseRequestURI(c.Path)
	if e := (*url.Error)(nil); errors.As(err, &e) {
		err = e.Err // the rest of the error repeats the path
	}
	return u, err
}

// isHost reports whether a text can be the name of a host in a request. Empty means no name.
func isHost(s string) bool {
	u, err := url.Parse("//" + s)
	return err == nil && u.Host == s && u.Path == ""
}

// isMethod reports whether a text can be a method of HTTP. Empty means the default.
func isMethod(s string) bool { return strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") == "" }

// web reports whether the check is an HTTP request of the user.
func (c Check) web() bool { return c.Type == HTTP || c.Type == HTTPS }

// secure reports whether the check uses TLS.
func (c Check) secure() bool { return c.Type == HTTPS || c.Type == GRPC && c.TLS }

func isMD5(s string) bool {
	return len(s) == 32 && strings.Trim(strings.ToLower(s), "0123456789abcdef") == ""
}

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

// Target is a check of an address, made by [Check.Target]. Targets can be compared with ==.
type Target struct {
	addr  netip.AddrPort
	check Check
}

// Target returns the check of an endpoint, with all defaults. Equivalent checks of an address are
// the same target.
func (c Check) Target(endpoint netip.AddrPort) Target {
	addr := endpoint.Addr()
	if c.Address.IsValid() {
		addr = c.Address
	}
	port := cmp.Or(c.Port, endpoint.Port())
	c.Address, c.Port = netip.Addr{}, 0
	return Target{netip.AddrPortFrom(addr, port), c.WithDefaults()}
}

// Addr returns the destination address and port of the check.
func (t Target) Addr() netip.AddrPort { return t.addr }

// Check returns the check, with all defaults and without an address and port.
func (t Target) Check() Check { return t.check }

// String returns "http 10.0.0.1:8080/healthz".
func (t Target) String() string {
	return string(t.check.Type) + " " + t.addr.String() + t.check.Path
}

// faults returns the wrong fields: those of the check, unless the check was seen already, and those
// that are wrong for this address.
func (t Target) faults(seen map[Check]bool) (faults []*servicemodel.FieldError) {
	if !seen[t.check] {
		seen[t.check] = true
		faults = t.check.faults()
	}

	switch s := t.check.Source; {
	case !t.addr.Addr().IsValid():
		return append(faults, fault("address", "", "is missing, and the endpoint has none"))
	case t.addr.Port() == 0:
		return append(faults, fault("port", "", "is missing, and the endpoint has none"))
	case s.IsValid() && s.Is4() != t.addr.Addr().Is4():
		return append(faults, fault("source", s.String(),
			fmt.Sprintf("is not of the family of %s", t.addr.Addr())))
	}

	return faults
}

func fault(field, value, reason string) *servicemodel.FieldError {
	return &servicemodel.FieldError{Object: "check", Field: field, Value: value, Reason: reason}
}

// joined joins errors. It returns nil for an empty list.
func joined(faults []*servicemodel.FieldError) error {
	errs := make([]error, len(faults))
	for i, f := range faults {
		errs[i] = f
	}
	return errors.Join(errs...)
}
