package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/servicemodel"
)

// tableOf resolves a state from an earlier table. Each argument is a service, with endpoints at
// 10.244.0.0 plus these numbers.
func tableOf(t *testing.T, prev *servicemodel.Table, services ...[]byte) *servicemodel.Table {
	t.Helper()
	var s servicemodel.State
	for i, hosts := range services {
		n := servicemodel.Name{Namespace: "default", Name: fmt.Sprint("svc-", i)}
		var eps []servicemodel.Endpoint
		for _, h := range hosts {
			eps = append(eps, servicemodel.Endpoint{
				Addr:  netip.AddrFrom4([4]byte{10, 244, 0, h}),
				Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 80}}})
		}

		s = s.WithEndpoints(n, eps).WithService(&servicemodel.Service{Name: n,
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})},
			Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}})
	}

	table, err := servicemodel.Resolve(prev, s)
	require.NoError(t, err)
	return table
}

// withPools returns a table with the pools that f returns for its pools.
func withPools(t *servicemodel.Table, f func(servicemodel.Pool) *servicemodel.Pool,
) *servicemodel.Table {
	c := &servicemodel.ChangeSet{}
	for p := range t.Pools() {
		c.Pools = append(c.Pools, servicemodel.Change[servicemodel.Pool]{Old: p, New: f(*p)})
	}
	return t.Apply(c)
}

func reversed(p servicemodel.Pool) *servicemodel.Pool {
	p.Slots = slices.Clone(p.Slots)
	slices.Reverse(p.Slots)
	return &p
}

func noPlace(servicemodel.Pool) *servicemodel.Pool { return nil }

func TestKnowledgeOfAReading(t *testing.T) {
	t.Parallel()
	one := [][]byte{{1, 2}}
	two := append(one, []byte{4})
	applied := tableOf(t, nil, one...)
	for _, c := range []struct {
		name          string
		applied, read *servicemodel.Table
		next          [][]byte
		disturbed     bool
		// lines of the texts of the changes to the next state
		changes, repairs, requested int
	}{
		{"the first, of an empty kernel", nil, nil, one, true, 6, 0, 6},
		{"the first, as wanted", nil, applied, one, true, 0, 0, 6},
		{"the first, in another order", nil, withPools(applied, reversed), one, true, 0, 0, 6},
		{"the first, without a place for pools", nil, withPools(applied, noPlace), one, true,
			0, 0, 6},
		{"the same, and something else differs", nil, withPools(applied, noPlace), two, true,
			5, 0, 10},
		{"as it was left", applied, applied, two, false, 4, 0, 4},
		{"in another order", applied, withPools(applied, reversed), two, false, 4, 0, 4},
		{"without a place for pools", applied, withPools(applied, noPlace), two, false, 4, 0, 4},
		{"flushed", applied, nil, two, true, 10, 6, 4},
		{"an endpoint was replaced", applied, tableOf(t, nil, []byte{1, 3}), two, true, 7, 3, 4},
	} {
		k := newKnowledge(servicemodel.State{})
		k.applied = c.applied
		k.observed(&backends.Observation{Table: c.read})
		require.Equal(t, c.disturbed, k.disturbed(), c.name)
		require.Equal(t, !c.disturbed, k.inSync(), c.name)
		next := tableOf(t, k.applied, c.next...)
		lines := func(want int, changes *servicemodel.ChangeSet) {
			text := changes.String()
			require.Equal(t, want, strings.Count(text, "\n"), "%s:\n%s", c.name, text)
		}

		lines(c.changes, k.changes(next))
		lines(c.requested, k.requested(next))
		if c.applied != nil {
			lines(c.repairs, k.repairs())
		}
		k.committed(next)
		require.True(t, k.inSync(), c.name)
	}
}

func TestKnowledgeAfterAFailedCommit(t *testing.T) {
	t.Parallel()
	left := tableOf(t, nil, []byte{1, 2})
	for _, c := range []struct {
		name    string
		err     error
		repairs bool // other programs' changes are told from ours
	}{
		{"another program wrote", fmt.Errorf("commit: %w", kernelerr.ErrConflict), true},
		{"it may have half succeeded", errors.New("refused"), false},
	} {
		k := newKnowledge(servicemodel.State{})
		k.committed(left)
		k.failed(c.err)
		require.Nil(t, k.inKernel, c.name)
		k.observed(&backends.Observation{Table: tableOf(t, nil, []byte{1, 2}), Partial: true})
		require.Equal(t, c.repairs, !k.disturbed(), c.name)
		require.False(t, k.inSync(), "there may be more in the kernel")
		k.observed(&backends.Observation{Table: left, Drift: []string{"a chain"}})
		require.False(t, k.inSync())
	}
}

// A suspicion is not forgotten until a reading, and the limit bounds the number of readings.
func TestKnowledgeOfASuspicion(t *testing.T) {
	t.Parallel()
	k, now := newKnowledge(servicemodel.State{}), time.Unix(1000, 0)
	require.Equal(t, backends.Intact, k.suspected(backends.Intact, now))
	for range readBurst {
		require.Equal(t, backends.Touched, k.suspected(backends.Touched, now))
		k.readings.Spend(0)
	}

	require.Equal(t, backends.Intact, k.suspected(backends.Touched, now), "the ration is used up")
	now = now.Add(time.Hour)
	require.Equal(t, backends.Touched, k.suspected(backends.Intact, now), "it is remembered")
	k.observed(&backends.Observation{})
	require.Equal(t, backends.Intact, k.suspected(backends.Intact, now))
}
