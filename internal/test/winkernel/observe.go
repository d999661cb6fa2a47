package main

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/examples/kernelspace"
	"github.com/kernlb/kernlb/examples/kernelspace/hnsfake"
)

// machine returns HNS as at the beginning of a scenario.
func machine(s *scenario) (*hnsfake.Service, error) {
	h := hnsfake.New(s.Features, s.Network)
	for _, e := range s.Endpoints {
		e.HostComputeNetwork, e.SchemaVersion.Major = s.Network.ID, 2
		if _, err := h.CreateEndpoint(&e); err != nil {
			return nil, err
		}
	}

	h.Calls()
	return h, nil
}

// fail makes the calls fail that a step names.
func fail(h *hnsfake.Service, step *objects) {
	h.Fail(func(call string) hnsfake.Fault {
		if step.Fails != "" && strings.HasPrefix(call, step.Fails) {
			return hnsfake.Refused
		}
		return hnsfake.None
	})
}

// observe returns the contents of HNS. After it, no call fails any more.
func observe(h *hnsfake.Service, s *scenario) (o outcome, err error) {
	h.Fail(nil)
	o = outcome{LoadBalancers: map[string]string{}, Endpoints: map[string]string{}}
	eps, err := h.Endpoints(s.Network.ID)
	if err != nil {
		return o, err
	}
	addrs := map[string]string{}
	for _, e := range eps {
		a := e.IPConfigurations[0].IPAddress
		for _, c := range e.IPConfigurations[1:] {
			a += "," + c.IPAddress
		}
		addrs[e.ID] = a
		if e.Remote() || e.Name == "" || strings.HasPrefix(e.Name, "kernlb-") {
			e.ID, e.Name, e.HostComputeNetwork = "", "", ""
			o.Endpoints[a] = text(e)
		}
	}

	lbs, err := h.LoadBalancers()
	if err != nil {
		return o, err
	}
	for _, lb := range lbs {
		k, _ := lb.Key()
		lb.ID = ""
		for i, id := range lb.HostComputeEndpoints {
			lb.HostComputeEndpoints[i] = addrs[id]
		}
		slices.Sort(lb.HostComputeEndpoints)
		o.LoadBalancers[k.String()] = text(lb)
	}

	for _, c := range h.Calls() {
		if before, _, found := strings.Cut(c, "ABCDEF00"); found {
			c = strings.TrimSpace(before)
		}
		o.Calls = append(o.Calls, c)
	}

	slices.Sort(o.Calls) // winkernel walks a map
	return o, nil
}

// text is the JSON of an object of HNS.
func text[T kernelspace.Endpoint | kernelspace.LoadBalancer](v T) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
