// Package config is the file of the load balancer: what it may say, and how it is read.
//
// A file is YAML, read strictly: an unknown field, one that stands twice, or a value of the wrong
// kind is an error with file, line and field, and all of them are found at once. [Load] also finds
// what is wrong between fields, such as two services at one address.
package config

import (
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/examples/loadbalancer/check"
)

// File is a file.
type File struct {
	// Concurrency is how many checks are under way at a time at most. Zero means 64.
	Concurrency int `yaml:"concurrency"`
	// Zone is the zone of this host, for services that prefer near backends.
	Zone     string    `yaml:"zone"`
	Services []Service `yaml:"services"`

	source *source
}

// Service is a port at virtual addresses, and who serves it.
type Service struct {
	Name string `yaml:"name"`
	// Addresses are the virtual addresses, of either family.
	Addresses []netip.Addr `yaml:"addresses"`
	Port      uint16       `yaml:"port"`
	// Protocol is tcp, udp or sctp; empty means tcp.
	Protocol string `yaml:"protocol"`
	// Device is a network device that the addresses are bound to, so that this host answers ARP and
	// neighbour solicitations for them. Empty, the default, leaves that to routers.
	Device string `yaml:"device"`
	// Scheduler is random or one of IPVS; empty is the kernel mechanism's own.
	Scheduler string `yaml:"scheduler"`
	// Prefer is zone, so that backends in the host's zone are preferred, or empty.
	Prefer string `yaml:"prefer"`
	// Forwarding is nat, direct or tunnel; empty means nat.
	Forwarding string `yaml:"forwarding"`
	// Masquerade says whose source address backends do not see: always, the default, or never, for
	// which their answers must be routed through this host.
	Masquerade string `yaml:"masquerade"`
	// Affinity is how long a client stays with its backend. Zero means not at all.
	Affinity time.Duration `yaml:"affinity"`
	// AffinityIPv4 and AffinityIPv6 are how many leading bits of an address identify a client with
	// affinity. Zero means all.
	AffinityIPv4 uint16 `yaml:"affinityIPv4"`
	AffinityIPv6 uint16 `yaml:"affinityIPv6"`
	// Sources are who may use the service; none means everybody.
	Sources []netip.Prefix `yaml:"sources"`
	// Connections says what becomes of connections to backends that are drained, fail or leave the
	// file: leave, the default, cut, or the time after which they are cut.
	Connections string `yaml:"connections"`
	// Checks are those of backends that have none of their own. Without any, a backend is up.
	Checks []check.Spec `yaml:"checks"`
	// Sorry are used while no backend of their family is up.
	Sorry    []netip.AddrPort `yaml:"sorry"`
	Backends []Backend        `yaml:"backends"`
}

// Backend is one server of a service.
type Backend struct {
	Address netip.AddrPort `yaml:"address"`
	// Weight is its share; nil means 1. With 0 it is drained: it gets no new connections, and those
	// that it has are dealt with as [Service.Connections] says.
	Weight *uint16 `yaml:"weight"`
	// Zone is the backend's zone; empty if unknown.
	Zone   string       `yaml:"zone"`
	Checks []check.Spec `yaml:"checks"`
}

// Drained reports whether the backend gets no new connections.
func (b *Backend) Drained() bool { return b.Weight != nil && *b.Weight == 0 }

// Targets returns what to ask about a backend of the service.
func (s *Service) Targets(b *Backend) []check.Target {
	specs := s.Checks
	if len(b.Checks) > 0 {
		specs = b.Checks
	}
	out := make([]check.Target, len(specs))
	for i, spec := range specs {
		out[i] = spec.Target(b.Address)
	}
	return out
}
