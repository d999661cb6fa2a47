package kernelspace_test

import (
	"net/netip"
	"testing"

	"github.com/kernlb/kernlb/internal/test/must"
	sm "github.com/kernlb/kernlb/servicemodel"
)

type netipAddr = netip.Addr

func web4(addrs ...string) (l []netip.Addr) {
	for _, a := range addrs {
		l = append(l, addr(a))
	}
	return l
}

func prefixes(texts ...string) (l []netip.Prefix) {
	for _, t := range texts {
		l = append(l, netip.MustParsePrefix(t))
	}
	return l
}

// changed is the service with two endpoints, and the second one changed.
func changed(change func(*sm.Endpoint)) sm.State {
	s := with(service(), "10.244.1.1", "10.244.1.2")
	eps := s.Endpoints(web)
	change(&eps[1])
	return s.WithEndpoints(web, eps)
}

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }
