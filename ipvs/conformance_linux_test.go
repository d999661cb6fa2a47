package ipvs_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/dataplanetest"
	"github.com/kernlb/kernlb/internal/netnstest"
	"github.com/kernlb/kernlb/ipvs"
)

func open(netns int) (dataplane.Backend, error) {
	return ipvs.New(&ipvs.Config{NetNS: netns})
}

// loading is held while a backend is opened for the first time: Linux 5.10 refuses a protocol whose module is being loaded for somebody else.
var loading sync.Mutex

// needIPVS skips a test on a kernel without IPVS.
func needIPVS(t *testing.T) {
	t.Helper()
	netnstest.Require(t)
	loading.Lock()
	defer loading.Unlock()
	ns, err := netnstest.NewNS("probe")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	b, err := open(ns.Fd())
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skipf("needs a kernel with the module ip_vs: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
}

func TestConformance(t *testing.T) {
	t.Parallel()
	needIPVS(t)
	dataplanetest.Run(t, open)
}

func TestRandomPackets(t *testing.T) {
	t.Parallel()
	needIPVS(t)
	dataplanetest.Random(t, open, dataplanetest.RandomOptions{Packets: 2000})
}
