package nftables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/ration"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rawnl/rawnltest"
	"github.com/kernlb/kernlb/servicemodel"
)

// tapped returns a backend, and the tap that all that it asks the kernel goes through.
func tapped(t *testing.T, ns *netnstest.NS) (*Backend, *rawnltest.Tap) {
	t.Helper()
	b := newBackend(t, ns, nil)
	require.NoError(t, b.kernel.conn.Close())
	require.NoError(t, b.kernel.askers[1].conn.Close())
	tap := &rawnltest.Tap{}
	var err error
	b.kernel.conn, err = rawnl.Dial(&rawnl.Config{NetNS: ns.Fd(),
		Wrap: func(s rawnl.Socket) rawnl.Socket { return tap.Wrap(s) }})
	require.NoError(t, err)
	b.kernel.askers = [2]*asker{{conn: b.kernel.conn}, {conn: b.kernel.conn}}
	return b, tap
}

// What is not understood is never taken for something that is not there.
func TestGarbledAnswersAreErrors(t *testing.T) {
	t.Parallel()
	ns, writer := newNS(t)
	state := affinityState(2, -1)
	_, err := dataplane.New(writer, nil).Apply(t.Context(), state)
	require.NoError(t, err)
	b, tap := tapped(t, ns)
	for name, wanted := range map[string]*servicemodel.Table{"all": mustResolve(t, state),
		"nothing": nil, "none": mustResolve(t, servicemodel.State{})} {
		rawnltest.GarbleEach(t, "observe "+name, tap, func() error {
			_, err := b.Observe(t.Context(), wanted)
			return err
		})
	}
	const getElement = uint16(rawnl.SubsysNFTables)<<8 | uint16(nft.MsgGetSetElem)
	rawnltest.GarbleEach(t, "integrity", tap, func() error {
		b.kernel.gen = 0
		b.looks = ration.New(8, 20)
		_, err := b.Integrity(t.Context())
		return err
	}, getElement) // that the version is there is all that is asked
}

// A sweep that does not understand what it reads says so, and does not count as done.
func TestGarbledAnswersEndNoSweep(t *testing.T) {
	t.Parallel()
	ns, writer := newNS(t)
	_, err := dataplane.New(writer, nil).Apply(t.Context(), affinityState(10, -1))
	require.NoError(t, err)
	b, tap := tapped(t, ns)
	o, err := b.Observe(t.Context(), nil)
	require.NoError(t, err)
	rememberClients(t, b, 100, 10)
	_, err = b.Commit(t.Context(), servicemodel.Diff(o.Table,
		mustResolve(t, affinityState(10, 3)).Arrange(o.Table)))
	require.NoError(t, err)
	rawnltest.GarbleEach(t, "settle", tap, func() error {
		_, err := b.Settle(t.Context())
		require.Equal(t, err == nil, b.observed)
		b.observed = true
		return err
	})
}
