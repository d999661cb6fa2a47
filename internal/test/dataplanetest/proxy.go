package dataplanetest

import (
	"errors"
	"slices"
	"syscall"

	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// protocols returns the protocols that the suite tests.
func (b *Backend) protocols() []servicemodel.Protocol {
	if b.Proxy {
		return []servicemodel.Protocol{servicemodel.TCP, servicemodel.UDP}
	}
	return protocols
}

// asks reports whether the backend can pass a scenario: a process does not see the input interface
// of a connection, IPVS does not support loopback addresses, and only nftables supports neighbours
// and other answers.
func (b *Backend) asks(s *scenario.Scenario) bool {
	for _, step := range s.Steps {
		if n := step.State.Node(); n.LocalhostNodePorts && !b.Loopback ||
			n.MasqueradeNeighbours && !b.Neighbours ||
			(n.NoEndpoints == "drop" || n.Forbidden != "") && !b.Answers ||
			!b.Ranges && hasRanges(step.State, func(servicemodel.ServicePort) bool {
				return true
			}) || !b.NodeRanges && hasRanges(step.State, func(p servicemodel.ServicePort) bool {
			return p.NodePort != 0
		}) || !b.Shifted && hasRanges(step.State, func(p servicemodel.ServicePort) bool {
			return p.TargetPort != 0
		}) {
			return false
		}
	}

	return !b.Proxy || s.Options == scenario.Options{}
}

// hasRanges reports whether a service of a state has such a range of ports.
func hasRanges(s servicemodel.State, such func(servicemodel.ServicePort) bool) bool {
	for svc := range s.Services() {
		if slices.ContainsFunc(svc.Ports, func(p servicemodel.ServicePort) bool {
			return p.EndPort != 0 && such(p)
		}) {
			return true
		}
	}

	return false
}

// expressible returns a state without the ports whose protocol the suite does not test.
func (b *Backend) expressible(s servicemodel.State) servicemodel.State {
	if !b.Proxy {
		return s
	}
	for svc := range s.Services() {
		n := len(svc.Ports)
		svc.Ports = slices.DeleteFunc(svc.Ports, func(p servicemodel.ServicePort) bool {
			return !slices.Contains(b.protocols(), p.Protocol)
		})
		switch {
		case len(svc.Ports) == 0:
			s = s.WithoutService(svc.Name)
		case len(svc.Ports) < n:
			s = s.WithService(svc)
		}
	}

	return s
}

// proxyDid reports whether a proxy did what want says, as far as a test can see it: see
// behaviour.md.
func (w *world) proxyDid(p netnstest.Probe, want scenario.Want, got netnstest.Outcome) bool {
	refused := got.Kind == netnstest.Refused || errors.Is(got.Err, syscall.ECONNRESET)
	switch want.Outcome {
	case servicemodel.Balanced:
		return got.Kind == netnstest.Answered && slices.Contains(want.Servers, got.Server) &&
			w.IsNodeAddr(got.Source.Addr())
	case servicemodel.Rejected:
		return refused
	case servicemodel.Dropped:
		return refused || got.Kind == netnstest.Dropped
	}

	return refused || w.untouched(p, got)
}
