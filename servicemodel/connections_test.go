package servicemodel_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestConnectionPoliciesReadWell(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]sm.ConnectionPolicy{
		"default":   {},
		"leave":     {Mode: sm.LeaveConnections},
		"drain 30s": {Mode: sm.DrainConnections, Drain: 30 * time.Second},
		"cut":       {Mode: sm.CutConnections},
		"policy 9":  {Mode: 9},
	} {
		require.Equal(t, want, p.String())
		require.Equal(t, p.Mode == 9, p.Validate() != nil, want)
	}
	require.EqualError(t, sm.ConnectionPolicy{Mode: sm.DrainConnections}.Validate(),
		"connection policy: drain: 0s: must be at least 1s")
}

// A connection policy does not change the table. Only package flows acts on it.
func TestConnectionPoliciesStayOutOfTheTable(t *testing.T) {
	t.Parallel()
	svc := webService(func(s *sm.Service) { s.Connections.Mode = sm.CutConnections })
	state := sm.State{}.WithNode(thisNode).WithService(webService()).WithEndpoints(web,
		[]sm.Endpoint{endpoint("10.64.0.1")})
	table := mustResolve(t, nil, state)
	changed := state.WithService(svc)
	require.False(t, state.Same(changed))
	require.Equal(t, sm.CutConnections, changed.Service(web).Connections.Mode)
	require.True(t, sm.Diff(table, mustResolve(t, table, changed)).Empty())
}
