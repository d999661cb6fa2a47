package ipvs

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// overtaken is a backend without turns. Another program commits before each of its commits.
type overtaken struct {
	*backend
	by func()
}

func (overtaken) Lock(context.Context) (func(), error) { return func() {}, nil }

func (b overtaken) Commit(ctx context.Context, c *sm.ChangeSet) (backends.Stats, error) {
	b.by()
	return b.backend.Commit(ctx, c)
}

// The instance is removed with its last part. A part that another program adds before the commit
// stays.
func TestTheInstanceGoesWithItsLastPart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	before := r.state()
	one := rigState([]string{"10.244.1.1"})
	two := rigState([]string{"10.244.1.2"}, func(s *sm.Service) {
		s.Name.Namespace, s.Ports[0].NodePort, s.ExternalIPs = "two", 0, nil
		s.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.96.0.99")}
	})
	p := dataplane.NewParts(r.backend(), nil)
	ok(p.Apply(t.Context(), "default", one))(t)
	b := overtaken{r.backend(), func() { ok(p.Apply(t.Context(), "two", two))(t) }}
	ok(dataplane.NewParts(b, nil).Remove(t.Context(), "default"))(t)
	require.Equal(t, []string{"two"}, ok(p.Owners(t.Context()))(t))
	ok(p.Remove(t.Context(), "two"))(t)
	require.Equal(t, before, r.state())
}
