// Package nodeaddrs provides an engine with the addresses of its node. It is for programs without
// any other source of addresses, such as a Kubernetes Node object.
//
//	addrs, err := nodeaddrs.New(nil)
//	…
//	defer addrs.Close()
//	engine := dataplane.New(backend, &dataplane.Config{Node: addrs})
//
// The addresses are the only field of a [servicemodel.Node] that the kernel knows. Interfaces of
// pods ([servicemodel.PodDetector]) are matched by name for each packet, so they may come and go at
// any time. The kernel does not know the node's name, zone and pod ranges. If these change, the
// program sets a state with an updated [servicemodel.Node], and the engine writes the difference.
package nodeaddrs

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/servicemodel"
)

// Config says which addresses to use. A nil *Config is the zero Config.
type Config struct {
	// NetNS names the node's network namespace.
	NetNS netns.Namespace
	// Except names devices whose addresses are ignored, such as a device with the addresses of
	// services. The devices need not exist. The devices of kube-proxy (kube-ipvs0) and of
	// kube-router (kube-dummy-if) are always ignored.
	Except []string
}

// Source is a [dataplane.NodeSource]. It provides the addresses of a network namespace that other
// machines can reach. Loopback addresses, link-local addresses and IPv4 addresses with host scope
// are excluded. Addresses that are not deprecated come first; within both groups, the order is that
// of the kernel, by device index. A new IPv6 address is included once duplicate address detection
// has finished. Addresses of a device that is down are included, so that a short link failure
// changes nothing. But the kernel reports a new IPv6 address on such a device only when the device
// comes up.
//
// The source lists the addresses again only after the kernel has reported a change. Its methods are
// safe for concurrent use.
type Source struct {
	mu     sync.Mutex
	except []string
	kernel kernel
	given  []netip.Addr // the last result of Complete
	asked  bool         // Complete has returned addresses
}

var _ dataplane.NodeSource = (*Source)(nil)

// New opens a source. On systems other than Linux, the error matches errors.ErrUnsupported.
func New(cfg *Config) (*Source, error) {
	cfg = cmp.Or(cfg, &Config{})
	s := &Source{except: slices.Clone(cfg.Except)}
	if err := s.kernel.open(cfg); err != nil {
		return nil, fmt.Errorf("follow the addresses of the node: %w", err)
	}
	return s, nil
}

// Close closes the source. Watch must have returned. Later calls fail with [kernelerr.ErrClosed].
func (s *Source) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kernel.close()
}

// Complete returns n with the current addresses of the node, unless n already has addresses.
func (s *Source) Complete(_ context.Context, n servicemodel.Node) (servicemodel.Node, error) {
	if len(n.Addresses) > 0 {
		return n, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.kernel.current(s.except)
	if err != nil {
		return n, fmt.Errorf("addresses of the node: %w", err)
	}
	s.given, s.asked = now, true
	n.Addresses = slices.Clone(now)
	return n, nil
}

// changed reports whether the addresses differ from the result of the last Complete, if any. If the
// addresses cannot be listed, it returns true, so that Complete reports the error.
func (s *Source) changed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.kernel.current(s.except)
	return s.asked && (err != nil || !slices.Equal(now, s.given))
}
