package kube

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// setRanges turns ports of a service into ranges, from an annotation: "10000-20000 30000-30099".
func setRanges(s *servicemodel.Service, value string) error {
	ports := slices.Clone(s.Ports)
	ranges := strings.Fields(value)
	for _, text := range ranges {
		first, last, _ := strings.Cut(text, "-")
		from, errFrom := strconv.ParseUint(first, 10, 16)
		to, errTo := strconv.ParseUint(last, 10, 16)
		if errFrom != nil || errTo != nil || from >= to {
			ranges = nil
			break
		}

		begins := false
		for i := range ports {
			if p := &ports[i]; uint64(p.Port) == from {
				p.EndPort, p.NodePort, begins = uint16(to), 0, true
			}
		}

		if !begins {
			return fmt.Errorf("the service has no port %d", from)
		}
	}

	if len(ranges) == 0 {
		return errors.New("must be ranges, each from a port of the service: 10000-20000")
	}
	s.Ports = ports
	return nil
}

// keepPorts returns the endpoints of a service. In Kubernetes each endpoint port has a number. For
// a range, the number of the service's own port means that packets keep their ports.
func keepPorts(s *servicemodel.Service, eps []servicemodel.Endpoint) []servicemodel.Endpoint {
	kept := map[servicemodel.EndpointPort]bool{}
	for _, p := range s.Ports {
		if p.EndPort != 0 {
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
