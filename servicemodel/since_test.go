package servicemodel_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

func TestSinceCountsWhatDiffers(t *testing.T) {
	t.Parallel()
	web, db := servicemodel.Name{Name: "web"}, servicemodel.Name{Name: "db"}
	a := servicemodel.State{}.WithService(&servicemodel.Service{Name: web}).
		WithEndpoints(web, []servicemodel.Endpoint{{Weight: 1}, {Weight: 2}}).
		WithService(&servicemodel.Service{Name: db})
	require.Equal(t, servicemodel.Edits{Services: 2, Endpoints: 1, Growth: 2},
		a.Since(servicemodel.State{}))
	b := a.WithoutService(web).WithEndpoints(db, []servicemodel.Endpoint{{Weight: 1}})
	require.Equal(t, servicemodel.Edits{Services: 1, Endpoints: 2, Growth: -1}, b.Since(a))
	require.Zero(t, b.Since(b))
	require.Zero(t, a.WithNode(servicemodel.Node{Name: "n1"}).Since(a))
}
