// Package nodeaddrs tells an engine which addresses its node has, for programs that nobody else
// tells: those that have a Node object of Kubernetes take them from there.
//
//	addrs, err := nodeaddrs.New(nil)
//	…
//	defer addrs.Close()
//	engine := dataplane.New(backend, &dataplane.Config{Node: addrs})
//
// Of what a [servicemodel.Node] says, addresses are what a kernel knows. Interfaces of pods
// ([servicemodel.PodDetector]) are told by their names in the packets' path, so that they may come
// and go. Name, zone and ranges of pods are known to nobody on the node: whoever learns that they
// changed sets a state with another node, and what differs in the kernel is written.
package nodeaddrs

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// Config says which addresses are meant. A nil *Config is the zero Config.
type Config struct {
	// NetNS is a file descriptor of the node's network namespace, and NetNSPath its path, such as
	// "/run/netns/blue": either, used only while the source is opened. Zero and empty mean that of
	// the calling thread.
	NetNS     int
	NetNSPath string
	// Except are names of devices whose addresses do not count, such as one that holds the
	// addresses of services. None of them needs to be there.
	Except []string
}

// Source is a [dataplane.NodeSource]: it knows the addresses of a network namespace that others can
// reach, which are neither loopback nor link-local addresses. Those come first that are not
// deprecated, and then in the kernel's order: by the index of their device. A new IPv6 address
// counts once the link was asked whether anybody else has it. Those of a device that is down count,
// so that one that goes down for a moment changes nothing; but the kernel tells of a new IPv6
// address there only when the device comes up.
//
// The addresses are listed only when the kernel has told of a change. A Source may be used by many
// goroutines.
type Source struct {
	mu     sync.Mutex
	except []string
	kernel kernel
	given  []netip.Addr // that Complete gave last
	asked  bool         // Complete has given some
}

var _ dataplane.NodeSource = (*Source)(nil)

// New opens a source. If this is not Linux, the error matches errors.ErrUnsupported.
func New(cfg *Config) (*Source, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	s := &Source{except: slices.Clone(cfg.Except)}
	if err := s.kernel.open(cfg); err != nil {
		return nil, fmt.Errorf("follow the addresses of the node: %w", err)
	}
	return s, nil
}

// Close closes the source. Watch must have ended.
func (s *Source) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kernel.close()
}

// Complete returns n with the addresses that the node has now, unless n has some.
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

// changed reports whether the addresses are not those that Complete gave last, if it gave any. If
// they cannot be listed, that is left to Complete.
func (s *Source) changed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.kernel.current(s.except)
	return s.asked && (err != nil || !slices.Equal(now, s.given))
}
