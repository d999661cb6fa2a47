// Package config reads and checks the file of the load balancer.
//
// A file is YAML. It is read strictly: an unknown or repeated field and a value of the wrong kind
// are errors, with file, line and field. All errors are found at once. [Load] also finds
// contradictions between fields, such as two services at one address.
package config

import (
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/dataplane/checks"
)

// File is a file.
type File struct {
	// Concurrency is the maximum number of checks at a time. Zero means 64.
	Concurrency int `yaml:"concurrency,omitempty"`
	// Zone is the zone of this host, for services that prefer near backends.
	Zone string `yaml:"zone,omitempty"`
	// Timeouts are those of IPVS. Other kernel mechanisms refuse them.
	Timeouts Timeouts  `yaml:"timeouts,omitempty"`
	Services []Service `yaml:"services,omitempty"`

	source *source
}

// Timeouts are the times after which IPVS forgets idle connections, in whole seconds. They apply to
// all virtual servers of the network namespace. Zero leaves a timeout as it is.
type Timeouts struct {
	TCP    time.Duration `yaml:"tcp,omitempty"`    // of established TCP connections
	TCPFin time.Duration `yaml:"tcpFin,omitempty"` // of TCP connections after a FIN
	UDP    time.Duration `yaml:"udp,omitempty"`    // of UDP flows
}

// Service is a port at virtual addresses, with its backends.
type Service struct {
	Name string `yaml:"name,omitempty"`
	// Addresses are the virtual addresses, of either family.
	Addresses []netip.Addr `yaml:"addresses,omitempty,flow"`
	Port      uint16       `yaml:"port,omitempty"`
	// EndPort, if not zero, makes the service answer at all ports from Port to EndPort. Packets
	// keep their ports at backends and sorry servers that have the port Port.
	EndPort uint16 `yaml:"endPort,omitempty"`
	// TargetPort, if not zero, maps these ports to as many ports of the backends and sorry servers:
	// Port to TargetPort, Port+1 to TargetPort+1, and so on. All of them have the port TargetPort.
	TargetPort uint16 `yaml:"targetPort,omitempty"`
	// Protocol is tcp, udp or sctp; empty means tcp.
	Protocol string `yaml:"protocol,omitempty"`
	// Device is the network device that gets the addresses, so that this host answers ARP and
	// neighbour solicitations for them. Empty, the default, leaves that to routers.
	Device string `yaml:"device,omitempty"`
	// Scheduler is random or a scheduler of IPVS. Empty means the kernel mechanism's default.
	Scheduler string `yaml:"scheduler,omitempty"`
	// Prefer is zone, so that backends in the host's zone are preferred, or empty.
	Prefer string `yaml:"prefer,omitempty"`
	// SlowStart is the time in which a backend that comes up reaches its full weight. Zero means
	// that the backend has its full weight at once.
	SlowStart time.Duration `yaml:"slowStart,omitempty"`
	// Forwarding is nat, direct or tunnel; empty means nat.
	Forwarding string `yaml:"forwarding,omitempty"`
	// Masquerade says whether backends see this host's address instead of the clients'. "always" is
	// the default. With "never", the backends' answers must be routed through this host.
	Masquerade string `yaml:"masquerade,omitempty"`
	// Affinity is the time for which a client stays with its backend. Zero means no affinity.
	Affinity time.Duration `yaml:"affinity,omitempty"`
	// AffinityIPv4 and AffinityIPv6 are the numbers of leading bits of an address that identify a
	// client with affinity. Zero means all bits.
	AffinityIPv4 uint16 `yaml:"affinityIPv4,omitempty"`
	AffinityIPv6 uint16 `yaml:"affinityIPv6,omitempty"`
	// Sources are who may use the service; none means everybody.
	Sources []netip.Prefix `yaml:"sources,omitempty,flow"`
	// Denied are who may not use it, also if Sources has them.
	Denied []netip.Prefix `yaml:"denied,omitempty,flow"`
	// Connections says what happens to connections of backends that are drained, fail or leave the
	// file: "leave", the default, "cut", or the time after which they are cut.
	Connections string `yaml:"connections,omitempty"`
	// SilentEndpoints says what becomes of backends that do not answer clients: "eject", "stay", or
	// empty for what the flag -eject-silent says.
	SilentEndpoints string `yaml:"silentEndpoints,omitempty"`
	// Checks are for backends without checks of their own. A backend without any checks is up.
	Checks []Check `yaml:"checks,omitempty"`
	// Sorry are used while no backend of their family is up.
	Sorry    []netip.AddrPort `yaml:"sorry,omitempty,flow"`
	Backends []Backend        `yaml:"backends,omitempty"`
}

// Backend is one server of a service.
type Backend struct {
	Address netip.AddrPort `yaml:"address"`
	// Weight is its share; nil means 1. With 0 it is drained: it gets no new connections, and
	// [Service.Connections] decides about its present ones.
	Weight *uint16 `yaml:"weight,omitempty"`
	// Zone is the backend's zone; empty if unknown.
	Zone   string  `yaml:"zone,omitempty"`
	Checks []Check `yaml:"checks,omitempty"`
}

// Drained reports whether the backend gets no new connections.
func (b *Backend) Drained() bool { return b.Weight != nil && *b.Weight == 0 }

// Targets returns the targets of the checks of a backend.
func (s *Service) Targets(b *Backend) []checks.Target {
	list := s.Checks
	if len(b.Checks) > 0 {
		list = b.Checks
	}
	out := make([]checks.Target, len(list))
	for i := range list {
		out[i] = list[i].Check().Target(b.Address)
	}
	return out
}

// checked reports whether the backend can be down.
func (s *Service) checked(b *Backend) bool { return len(s.Checks)+len(b.Checks) > 0 }
