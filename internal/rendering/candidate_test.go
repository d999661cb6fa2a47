package rendering

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
)

func TestTheChangesAskForEverything(t *testing.T) {
	t.Parallel()
	plain := must.OK(Changes(false, 0))(t)
	sticky := must.OK(Changes(true, 0))(t)
	require.NotEqual(t, plain.String(), sticky.String())
	require.NotEmpty(t, plain.Hairpins)
	require.NotEmpty(t, plain.ClusterIPs)
	var sources, nodePorts, rejected, split int
	for f := range plain.New.Frontends() {
		if f.Sources != nil {
			sources++
		}
		if f.Key.NodePort() {
			nodePorts++
		}
		if !f.Internal.Balances() {
			rejected++
		}
		if f.Internal != f.External {
			split++
		}
	}

	require.NotZero(t, sources)
	require.NotZero(t, nodePorts)
	require.NotZero(t, rejected)
	require.NotZero(t, split)
}
