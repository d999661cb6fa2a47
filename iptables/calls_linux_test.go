package iptables

import (
	"errors"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

// openFaulty opens a backend whose socket the faults wrap.
func openFaulty(netns int, f *rawnltest.Faults) (dataplane.Backend, error) {
	b, err := openBackend(&Config{NetNS: netns})
	if err != nil {
		return nil, err
	}
	conn, err := rawnl.Dial(&rawnl.Config{NetNS: netns,
		Wrap: func(s rawnl.Socket) rawnl.Socket { return f.Wrap(s) }})
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	b.kernel.conn.Close()
	b.kernel.conn, b.kernel.reader = conn, newReader(conn)
	return b, nil
}

func TestEachCallGoesWrong(t *testing.T) {
	t.Parallel()
	dataplanetest.Faulted(t, func() dataplanetest.FaultyBackend {
		return dataplanetest.FaultyBackend{Backend: underTest, OpenFaulty: openFaulty}
	})
}

func TestDeprived(t *testing.T) {
	t.Parallel()
	dataplanetest.Deprived(t, underTest)
}

func TestBesideACrowd(t *testing.T) {
	t.Parallel()
	dataplanetest.Crowded(t, dataplanetest.FaultyBackend{Backend: underTest,
		OpenFaulty: openFaulty}, "ip foreign", "ip nat")
}

func TestKernelClockJumps(t *testing.T) { dataplanetest.ClockJumps(t, underTest) }

func TestLacking(t *testing.T) {
	t.Parallel()
	dataplanetest.Lacking(t, underTest)
}
