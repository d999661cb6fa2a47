package ipvs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/internal/wait"
)

// tap puts a tap between a backend and nf_tables.
func (r *rig) tap(b *backend) *rawnltest.Tap {
	r.t.Helper()
	require.NoError(r.t, b.kernel.nf.Close())
	tap := &rawnltest.Tap{}
	b.kernel.nf = ok(rawnl.Dial(&rawnl.Config{NetNS: r.ns.Fd(),
		Wrap: func(s rawnl.Socket) rawnl.Socket { return tap.Wrap(s) }}))(r.t)
	return tap
}

// An answer that cannot be decoded never counts as a missing object.
func TestGarbledAnswersAreErrors(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t)
	tap := r.tap(b)
	observe := func() error {
		_, err := b.Observe(t.Context(), nil)
		return err
	}
	rawnltest.GarbleEach(t, "observe nothing", tap, observe)
	state := rigState([]string{"10.244.1.1"}, restrictedTo("198.51.100.0/24", "2001:db8::/32"))
	rawnltest.GarbleEach(t, "commit", tap, func() error {
		_, err := dataplane.New(b, nil).Apply(t.Context(), state)
		return err
	})
	rawnltest.GarbleEach(t, "observe", tap, observe)
	rawnltest.GarbleEach(t, "look", tap, func() error {
		b.kernel.gen--
		b.looks = wait.NewBudget(8, 20)
		i, err := b.Integrity(t.Context())
		require.Equal(t, err == nil, i == dataplane.Intact)
		return err
	})
	r.apply(r.engine(Config{Table: "another"}), state)
	rawnltest.GarbleEach(t, "clean up", tap, func() error {
		_, err := b.Cleanup(t.Context())
		return err
	})
}
