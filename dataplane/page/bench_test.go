package page_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/dataplane/page"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// The first page after a change, and searches after that, for 10,000 services of ten endpoints.
func BenchmarkPage(b *testing.B) {
	state := many(10000, 10)
	s := holding(b, state, nil)
	for _, of := range []struct{ name, path string }{
		{"list", "/"}, {"name", "/?q=app-77"}, {"endpoint", "/?q=11.0.200.200"},
		{"no-endpoint", "/?q=11.99.99.99"}, {"problems", "/?show=problems"},
		{"service", "/service?name=team-1/app-1"},
		{"trace", "/trace?from=10.244.1.5&to=10.96.0.10:80/tcp"},
	} {
		b.Run(of.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if code, body := s.get(of.path); code != http.StatusOK {
					b.Fatal(body)
				}
			}
		})
	}

	b.Run("first", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			page := page.New(s.engine, nil)
			if code, body := ask(page, "/"); code != http.StatusOK {
				b.Fatal(body)
			}
			page.Close()
		}
	})
}

// costless is a backend that takes no time, so that only the time of engine and page remains.
type costless struct{ backends.Backend }

func (costless) Unwrap() backends.Backend { return nil }

func (costless) Check(*sm.ChangeSet) error { return nil }

func (costless) Observe(context.Context, *sm.Table) (*backends.Observation, error) {
	return &backends.Observation{}, nil
}

func (costless) Integrity(context.Context) (backends.Integrity, error) {
	return backends.Intact, nil
}

func (costless) Commit(context.Context, *sm.ChangeSet) (backends.Stats, error) {
	return backends.Stats{Messages: 1}, nil
}

// One change of one endpoint among 10,000 services, with and without a page that observes.
func BenchmarkApply(b *testing.B) {
	for _, listens := range []bool{false, true} {
		b.Run(fmt.Sprintf("page=%v", listens), func(b *testing.B) {
			state := many(10000, 10)
			e := dataplane.New(costless{memory.New(nil)}, nil)
			if listens {
				p := page.New(e, nil)
				defer p.Close()
			}

			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				eps := state.Endpoints(name(0))
				eps[0].Addr = addr(172, 16, i)
				state = state.WithEndpoints(name(0), eps)
				if _, err := e.Apply(b.Context(), state); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
