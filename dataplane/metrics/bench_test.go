package metrics_test

import (
	"context"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/servicemodel"
)

// costless is a backend that does nothing.
type costless struct{ backends.Backend }

func (costless) Unwrap() backends.Backend { return nil }

func (costless) Name() string                        { return "nftables" }
func (costless) Check(*servicemodel.ChangeSet) error { return nil }

func (costless) Observe(context.Context, *servicemodel.Table) (*backends.Observation, error) {
	return &backends.Observation{}, nil
}

func (costless) Commit(context.Context, *servicemodel.ChangeSet) (backends.Stats, error) {
	return backends.Stats{Messages: 1}, nil
}

func (costless) Integrity(context.Context) (backends.Integrity, error) {
	return backends.Intact, nil
}

// tenThousand returns a state of 10,000 services of 10 endpoints.
func tenThousand() servicemodel.State {
	s := onNode()
	for i := range 10000 {
		s = with(s, i, 10)
	}
	return s
}

// BenchmarkApply replaces one endpoint of one of 10,000 services, with and without a collector. The
// backend takes no time.
func BenchmarkApply(b *testing.B) {
	all := tenThousand()
	for _, collected := range []bool{false, true} {
		b.Run(map[bool]string{false: "alone", true: "collected"}[collected], func(b *testing.B) {
			e := dataplane.New(costless{memory.New(nil)}, nil)
			if collected {
				defer metrics.New(e, &metrics.Config{Flows: &fakeFlows{}}).Close()
			}
			s, i := all, 0
			if _, err := e.Apply(b.Context(), s); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				i++
				eps := s.Endpoints(serviceName(i % 10000))
				eps[0].Ports = []servicemodel.EndpointPort{
					{Protocol: servicemodel.TCP, Port: uint16(i%60000) + 1}}
				s = s.WithEndpoints(serviceName(i%10000), eps)
				if _, err := e.Apply(b.Context(), s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
