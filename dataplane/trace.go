package dataplane

import (
	"fmt"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// Trace explains what the kernel does to a packet ([servicemodel.Table.Trace] of Held). It also
// names the refused services that would claim the packet, each with the reason. It costs one check
// of each refused service more than a table's Trace.
func (s Status) Trace(p servicemodel.Packet, here servicemodel.Locality) servicemodel.Trace {
	t := s.Held.Trace(p, here)
	var refused []servicemodel.Step
	lost := true
	for _, r := range s.Refused {
		if r.Family != 0 && r.Family == servicemodel.FamilyOf(p.Dst.Addr()) {
			refused = append(refused, servicemodel.Step{Kind: "refused", Text: r.String()})
			lost = false
			continue
		}
		svc := s.State.Service(r.Service)
		if svc == nil || len(r.Endpoints) > 0 || !answers(svc, p, here) {
			continue
		}
		for _, problem := range Problems(r.Err) {
			refused = append(refused, servicemodel.Step{Kind: "refused",
				Text: fmt.Sprintf("%v has %v, but is refused: %v", r.Service, p.Dst, problem.Err)})
		}
	}
	if len(refused) == 0 {
		return t
	}
	if lost && t.Decision.Frontend == nil {
		none := fmt.Sprintf("no service has %v", p.Dst.Addr())
		t.Steps = slices.DeleteFunc(t.Steps, func(s servicemodel.Step) bool {
			return s.Text == none
		})
		t.Steps[len(t.Steps)-1].Text = fmt.Sprintf("%v: the service that has %v is refused",
			t.Decision.Outcome, p.Dst)
	}
	at := slices.IndexFunc(t.Steps, func(s servicemodel.Step) bool {
		return s.Kind != "source" && s.Kind != "destination" && s.Kind != "conflict"
	})
	t.Steps = slices.Insert(t.Steps, at, refused...)
	return t
}

// answers reports whether a service claims the destination of a packet. The service may be invalid.
func answers(s *servicemodel.Service, p servicemodel.Packet, here servicemodel.Locality) bool {
	dst := p.Dst.Addr()
	has := slices.Contains(s.ClusterIPs, dst) || slices.Contains(s.ExternalIPs, dst) ||
		slices.Contains(s.HostIPs, dst) ||
		slices.Contains(s.LoadBalancerIPs, servicemodel.LoadBalancerIP{Addr: dst})
	return slices.ContainsFunc(s.Ports, func(port servicemodel.ServicePort) bool {
		return port.Protocol == p.Protocol && (has && port.Port == p.Dst.Port() ||
			port.NodePort != 0 && port.NodePort == p.Dst.Port() && here.Local(dst))
	})
}
