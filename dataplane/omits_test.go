package dataplane_test

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// omitting is a backend whose readings lack the pool of one service.
type omitting struct {
	*memory.Backend
	omits servicemodel.Name
}

func (omitting) OmitsPools() {}

func (b omitting) Observe(ctx context.Context, want *servicemodel.Table) (*backends.Observation,
	error) {
	o, err := b.Backend.Observe(ctx, want)
	if err != nil {
		return nil, err
	}
	c := o.Table.Contents()
	c.Pools = slices.DeleteFunc(c.Pools, func(p *servicemodel.Pool) bool {
		return p.ID.Service.Name == b.omits
	})
	o.Table, err = servicemodel.NewTable(c)
	return o, err
}

// Commit also accepts changes that begin from a reading.
func (b omitting) Commit(ctx context.Context, c *servicemodel.ChangeSet) (backends.Stats, error) {
	o, err := b.Backend.Observe(ctx, nil)
	if err != nil {
		return backends.Stats{}, err
	}
	return b.Backend.Commit(ctx, servicemodel.Diff(o.Table, c.New))
}

// Stored changes begin from contents that any process can read, although the engine that planned
// them knows a pool that no reading has.
func TestAPlanBeginsFromAReading(t *testing.T) {
	t.Parallel()
	m := memory.New(nil)
	b := omitting{m, serviceName(1)}
	e := dataplane.New(b, nil)
	ok(e.Apply(t.Context(), services(2)))(t)
	require.True(t, ok(e.Apply(t.Context(), services(2)))(t).Changes.Empty())

	p := ok(e.Plan(t.Context(), services(3)))(t)
	stored := &servicemodel.ChangeSet{}
	require.NoError(t, json.Unmarshal(ok(json.Marshal(p.Changes))(t), stored))
	ok(dataplane.New(b, nil).ApplyChanges(t.Context(), stored))(t)
	requireHolds(t, m.Kernel(), services(3))
}
