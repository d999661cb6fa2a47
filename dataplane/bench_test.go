package dataplane_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// costless is a backend that takes no time: what remains is the engine's.
type costless struct{}

func (costless) Name() string                                         { return "costless" }
func (costless) Check(c *servicemodel.ChangeSet) error                { return refusePort81(c) }
func (costless) Close() error                                         { return nil }
func (costless) Plan(*servicemodel.ChangeSet) (dataplane.Plan, error) { return nil, nil }

func (costless) Observe(context.Context, *servicemodel.Table) (*dataplane.Observation, error) {
	return &dataplane.Observation{}, nil
}

func (costless) Integrity(context.Context) (dataplane.Integrity, error) {
	return dataplane.Intact, nil
}

func (costless) Commit(context.Context, *servicemodel.ChangeSet) (dataplane.Stats, error) {
	return dataplane.Stats{}, nil
}

func (costless) Cleanup(context.Context) (dataplane.Stats, error) { return dataplane.Stats{}, nil }

// BenchmarkApply replaces one endpoint of one of 10,000 services, some of which are refused each
// time.
func BenchmarkApply(b *testing.B) {
	const n = 10000
	ip := func(base byte, i int) netip.Addr {
		return netip.AddrFrom4([4]byte{10, base, byte(i >> 8), byte(i)})
	}
	var all servicemodel.State
	for i := range n {
		s := service(i)
		s.ClusterIPs = []netip.Addr{ip(100, i)}
		all = all.WithService(s).WithEndpoints(s.Name, endpoints(1, 2, 3, 4, 5, 6, 7, 8, 9, 10))
	}
	for _, kind := range []struct {
		name    string
		service func(int) *servicemodel.Service
	}{{"invalid", invalid}, {"unsupported", func(i int) *servicemodel.Service { return at81(i) }}} {
		for _, refused := range []int{0, 1, 10, 100} {
			b.Run(fmt.Sprintf("%s=%d", kind.name, refused), func(b *testing.B) {
				s := all
				for i := range refused {
					s = s.WithService(kind.service(i * 97))
				}
				e := dataplane.New(costless{}, nil)
				i := 0
				for b.Loop() {
					i++
					s = s.WithEndpoints(serviceName(i*97%n+1), endpoints(byte(i), 2, 3, 4, 5, 6, 7,
						8, 9, 10))
					if r, err := e.Apply(b.Context(), s); err != nil || len(r.Refused) != refused {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
