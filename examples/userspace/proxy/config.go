package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Config configures a [Backend]. A nil *Config means the zero Config.
type Config struct {
	// Map maps addresses of services and endpoints to addresses on this host. Nil maps nothing.
	Map Mapping
	// Addresses returns the addresses of the node, at which node ports answer. Loopback addresses
	// need not be among them. Nil means the addresses of the interfaces.
	Addresses func() ([]netip.Addr, error)
	// Within runs a function that opens a socket or reads addresses: a program can run it in
	// another network namespace. Nil just calls the function.
	Within func(func() error) error

	// ConnectTimeout is the time in which an endpoint must accept a connection. After that, the
	// proxy tries another endpoint. 0 means [DefaultConnectTimeout].
	ConnectTimeout time.Duration
	// IdleTimeout is the time without a byte in either direction after which a connection is reset;
	// it may take half as long again. 0 means [DefaultIdleTimeout]. Keepalive probes find dead
	// peers earlier. A peer that reads slowly takes bytes in steps, because its kernel first lets
	// the receive buffer empty: at 40 kB/s Linux takes 95 kB about every 3 seconds. A timeout
	// shorter than a step ends such a connection.
	IdleTimeout time.Duration
	// UDPTimeout is the time without a datagram in either direction after which a flow is
	// forgotten. For a flow whose endpoint has answered less than twice, it is a quarter of that. 0
	// means [DefaultUDPTimeout].
	UDPTimeout time.Duration

	// MaxConnections bounds the TCP connections that are forwarded at a time. Further connections
	// wait in the queues of the listeners. 0 means [DefaultMaxConnections]. Each takes up to six
	// file descriptors.
	MaxConnections int
	// MaxFlows bounds the UDP flows of all services. At the limit, a new flow ends a flow of the
	// service with the most flows. Flows that were answered less than twice are ended first, and
	// among equals the least recently used flow. 0 means [DefaultMaxFlows]. Each takes a file
	// descriptor and a buffer of 16 KiB.
	MaxFlows int

	// Header says whether the TCP connections of a service begin with a header at its endpoints:
	// version 2 of the PROXY protocol, which names the client to the endpoint. Nil means no header.
	Header func(servicemodel.Name) bool
	// Logger gets a record of connections that no endpoint accepts, and of connections and
	// datagrams that are dropped at a limit. Nil means silence.
	Logger *slog.Logger
}

// The defaults of [Config]. The idle timeout is kube-proxy's for established connections
// (conntrack.tcpEstablishedTimeout). The timeout of UDP flows is the kernel's for streams
// (nf_conntrack_udp_timeout_stream).
const (
	DefaultConnectTimeout = 2 * time.Second
	DefaultIdleTimeout    = 24 * time.Hour
	DefaultUDPTimeout     = 2 * time.Minute
	DefaultMaxConnections = 4096
	DefaultMaxFlows       = 4096
)

const (
	attempts    = 3        // endpoints that are tried for a connection
	maxDatagram = 16 << 10 // bytes; larger ones are dropped
	maxClients  = 1 << 16  // that session affinity remembers; at the limit it forgets any one
)

// filled returns the configuration with its defaults, or a *[servicemodel.FieldError] for each
// wrong field.
func (c *Config) filled() (Config, error) {
	var f Config
	if c != nil {
		f = *c
	}
	if f.Addresses == nil {
		f.Addresses = interfaceAddrs
	}
	if f.Within == nil {
		f.Within = func(f func() error) error { return f() }
	}
	if f.Header == nil {
		f.Header = func(servicemodel.Name) bool { return false }
	}
	if f.Logger == nil {
		f.Logger = slog.New(slog.DiscardHandler)
	}
	return f, errors.Join(
		fill("ConnectTimeout", &f.ConnectTimeout, DefaultConnectTimeout),
		fill("IdleTimeout", &f.IdleTimeout, DefaultIdleTimeout),
		fill("UDPTimeout", &f.UDPTimeout, DefaultUDPTimeout),
		fill("MaxConnections", &f.MaxConnections, DefaultMaxConnections),
		fill("MaxFlows", &f.MaxFlows, DefaultMaxFlows))
}

// fill sets a field that is zero to its default, and refuses a negative value.
func fill[T int | time.Duration](field string, value *T, standard T) error {
	if *value < 0 {
		return &servicemodel.FieldError{Object: "proxy configuration", Field: field,
			Value: fmt.Sprint(*value), Reason: "must not be negative"}
	}

	*value = cmp.Or(*value, standard)
	return nil
}

// interfaceAddrs returns the addresses of the host that other hosts can reach.
func interfaceAddrs() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of the node: %w", err)
	}
	var out []netip.Addr
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() {
			out = append(out, p.Addr().Unmap())
		}
	}

	return out, nil
}
