package kube

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// setRanges turns ports of a service into ranges, from an annotation: "10000-20000", or
// "8000-8099:9000-9099" for a range that is mapped to another range.
func setRanges(s *servicemodel.Service, value string) error {
	ports := slices.Clone(s.Ports)
	ranges := strings.Fields(value)
	for _, text := range ranges {
		own, target, mapped := strings.Cut(text, ":")
		from, to, ok := parseRange(own)
		first, last, okTarget := parseRange(target)
		if !ok || mapped && !okTarget {
			ranges = nil
			break
		}
		if mapped && last-first != to-from {
			return fmt.Errorf("the ranges of %s differ in length", text)
		}

		begins := false
		for i := range ports {
			if p := &ports[i]; p.Port == from {
				p.EndPort, p.TargetPort, p.NodePort, begins = to, first, 0, true
			}
		}

		if !begins {
			return fmt.Errorf("the service has no port %d", from)
		}
	}

	if len(ranges) == 0 {
		return errors.New("must be ranges, each from a port of the service: 10000-20000, or " +
			"8000-8099:9000-9099")
	}
	s.Ports = ports
	return nil
}

// parseRange reads "10000-20000".
func parseRange(text string) (from, to uint16, ok bool) {
	first, last, _ := strings.Cut(text, "-")
	a, errFrom := strconv.ParseUint(first, 10, 16)
	b, errTo := strconv.ParseUint(last, 10, 16)
	return uint16(a), uint16(b), errFrom == nil && errTo == nil && a < b
}

// keepPorts returns the endpoints of a service. In Kubernetes each endpoint port has a number. For
// a range, the number of the service's own port means that packets keep their ports.
func keepPorts(s *servicemodel.Service, eps []servicemodel.Endpoint) []servicemodel.Endpoint {
	kept := map[servicemodel.EndpointPort]bool{}
	for _, p := range s.Ports {
		if p.EndPort != 0 && p.TargetPort == 0 {
			kept[servicemodel.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: p.Port}] = true
		}
	}

	if len(kept) == 0 {
		return eps
	}
	eps = slices.Clone(eps)
	for i := range eps {
		eps[i].Ports = slices.Clone(eps[i].Ports)
		for j, p := range eps[i].Ports {
			if kept[p] {
				eps[i].Ports[j].Port = 0
			}
		}
	}

	return eps
}
