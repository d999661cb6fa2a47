package nftables

import (
	"errors"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

func open(netns int) (dataplane.Backend, error) { return openBackend(&Config{NetNS: netns}) }

// openFaulty opens a backend whose sockets the faults wrap.
func openFaulty(netns int, f *rawnltest.Faults) (dataplane.Backend, error) {
	b, err := openBackend(&Config{NetNS: netns})
	if err != nil {
		return nil, err
	}
	k := &b.kernel
	for i := range k.askers {
		conn, err := rawnl.Dial(&rawnl.Config{NetNS: netns,
			Wrap: func(s rawnl.Socket) rawnl.Socket { return f.Wrap(s) }})
		if err != nil {
			return nil, errors.Join(err, b.Close())
		}
		k.askers[i].conn.Close()
		k.askers[i].conn = conn
	}
	k.conn = k.askers[0].conn
	return b, nil
}

func TestEachCallGoesWrong(t *testing.T) {
	t.Parallel()
	dataplanetest.Faulted(t, func() dataplanetest.FaultyBackend {
		return dataplanetest.FaultyBackend{Backend: dataplanetest.Backend{Open: open},
			OpenFaulty: openFaulty}
	})
}

func TestDeprived(t *testing.T) {
	t.Parallel()
	dataplanetest.Deprived(t, dataplanetest.Backend{Open: open})
}

func TestBesideACrowd(t *testing.T) {
	t.Parallel()
	dataplanetest.Crowded(t, dataplanetest.FaultyBackend{
		Backend: dataplanetest.Backend{Open: open}, OpenFaulty: openFaulty}, "ip foreign")
}

func TestKernelClockJumps(t *testing.T) {
	dataplanetest.ClockJumps(t, dataplanetest.Backend{Open: open})
}

func TestLacking(t *testing.T) {
	t.Parallel()
	dataplanetest.Lacking(t, dataplanetest.Backend{Open: open, Loopback: true})
}
