package proxy

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Config says how a [Backend] works. A nil *Config is the zero Config.
type Config struct {
	// Map says where addresses of services and endpoints are on this host. Nil changes none.
	Map Mapping
	// Addresses returns the addresses of the node, at which node ports answer. Loopback addresses
	// need not be among them. Nil returns those of the interfaces.
	Addresses func() ([]netip.Addr, error)
	// Within runs the function that makes a socket or reads addresses: a program can run it in
	// another network namespace. Nil just calls it.
	Within func(func() error) error

	// Inherited are sockets that listen already: of the process before ([Backend.Sockets]), or of a
	// service manager (LISTEN_FDS). A listener at the address of one of them uses it, and clients
	// that wait in its queue are served. [New] takes the files and closes them. Sockets that the
	// first commit has no use for are closed after it, and logged.
	Inherited []*os.File

	// ConnectTimeout is how long an endpoint may take to accept a connection until another one is
	// asked; 0 means [DefaultConnectTimeout].
	ConnectTimeout time.Duration
	// Attempts is how many endpoints a connection is offered to; 0 means [DefaultAttempts].
	Attempts int
	// IdleTimeout is after what time without a byte in either direction a connection is reset; it
	// may take half as long again. 0 means [DefaultIdleTimeout]. Peers that died without a word are
	// found earlier, by keepalive probes.
	IdleTimeout time.Duration
	// UDPTimeout is after what time without a datagram in either direction a flow is forgotten; 0
	// means [DefaultUDPTimeout].
	UDPTimeout time.Duration

	// MaxConnections bounds the TCP connections that are forwarded at a time; more wait in the
	// queues of the listeners. 0 means [DefaultMaxConnections]. Each takes up to six file
	// descriptors.
	MaxConnections int
	// MaxFlows bounds the UDP flows; datagrams that would begin another are dropped. 0 means
	// [DefaultMaxFlows]. Each takes a file descriptor and a buffer of MaxDatagram bytes.
	MaxFlows int
	// MaxDatagram is the largest datagram that is forwarded, in bytes; larger ones are dropped. 0
	// means [DefaultMaxDatagram].
	MaxDatagram int
	// MaxClients bounds the clients that session affinity remembers; the ones that were not seen
	// for longest are forgotten first. 0 means [DefaultMaxClients].
	MaxClients int

	// Header says which header the TCP connections of a service port begin with at its endpoints.
	// Nil means none.
	Header func(servicemodel.PortName) Header
	// Logger gets a record of connections that no endpoint accepts, and of what is dropped because
	// a limit is reached. Nil means silence.
	Logger *slog.Logger
}

// The defaults of [Config]. The idle timeout is kube-proxy's for established connections
// (conntrack.tcpEstablishedTimeout), that of UDP flows the kernel's for streams
// (nf_conntrack_udp_timeout_stream).
const (
	DefaultConnectTimeout = 2 * time.Second
	DefaultAttempts       = 3
	DefaultIdleTimeout    = 24 * time.Hour
	DefaultUDPTimeout     = 2 * time.Minute
	DefaultMaxConnections = 4096
	DefaultMaxFlows       = 4096
	DefaultMaxDatagram    = 16 << 10
	DefaultMaxClients     = 1 << 16
)

// filled returns the configuration with its defaults, or the *[servicemodel.FieldError] of the
// first field that is wrong.
func (c *Config) filled() (Config, error) {
	var f Config
	if c != nil {
		f = *c
	}
	for _, d := range []struct {
		field    string
		value    *time.Duration
		standard time.Duration
	}{
		{"ConnectTimeout", &f.ConnectTimeout, DefaultConnectTimeout},
		{"IdleTimeout", &f.IdleTimeout, DefaultIdleTimeout},
		{"UDPTimeout", &f.UDPTimeout, DefaultUDPTimeout},
	} {
		if err := fill(d.field, d.value, d.standard); err != nil {
			return f, err
		}
	}
	for _, n := range []struct {
		field    string
		value    *int
		standard int
	}{
		{"Attempts", &f.Attempts, DefaultAttempts},
		{"MaxConnections", &f.MaxConnections, DefaultMaxConnections},
		{"MaxFlows", &f.MaxFlows, DefaultMaxFlows},
		{"MaxDatagram", &f.MaxDatagram, DefaultMaxDatagram},
		{"MaxClients", &f.MaxClients, DefaultMaxClients},
	} {
		if err := fill(n.field, n.value, n.standard); err != nil {
			return f, err
		}
	}
	f.fillFunctions()
	return f, nil
}

// fill puts the default where a field is zero, and refuses what is negative.
func fill[T int | time.Duration](field string, value *T, standard T) error {
	switch {
	case *value < 0:
		return &servicemodel.FieldError{Object: "proxy configuration", Field: field,
			Value: fmt.Sprint(*value), Reason: "must not be negative"}
	case *value == 0:
		*value = standard
	}
	return nil
}

func (c *Config) fillFunctions() {
	if c.Addresses == nil {
		c.Addresses = interfaceAddrs
	}
	if c.Within == nil {
		c.Within = func(f func() error) error { return f() }
	}
	if c.Header == nil {
		c.Header = func(servicemodel.PortName) Header { return NoHeader }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// interfaceAddrs returns the addresses of the host that others can reach.
func interfaceAddrs() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of the node: %w", err)
	}
	var out []netip.Addr
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			if ip := p.Addr().Unmap(); ip.IsGlobalUnicast() {
				out = append(out, ip)
			}
		}
	}
	return out, nil
}
