package ipvs_test

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/vishvananda/netns"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/ipvs"
)

func open(netns int) (dataplane.Backend, error) {
	b, err := ipvs.New(&ipvs.Config{NetNS: netns})
	if err != nil {
		return nil, err
	}
	return b, steady(netns)
}

// steady prevents Linux 7.x from resizing its table of connections. During a resize, the kernel may
// not find the remembered endpoint of a client with session affinity, which then gets another
// endpoint; see the limits in the package documentation. Older kernels have a table of a fixed
// size.
func steady(ns int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		return err
	}
	defer home.Close()
	if err := netns.Set(netns.NsHandle(ns)); err != nil {
		return err
	}
	err = os.WriteFile("/proc/sys/net/ipv4/vs/conn_lfactor", []byte("8"), 0)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, netns.Set(home))
}

// loading is held while a backend is opened for the first time: Linux 5.10 refuses a protocol while
// another process makes the kernel load its module.
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
	if errors.Is(err, dataplane.ErrMissingModule) {
		t.Skipf("needs a kernel with the module ip_vs: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
}

// underTest is the backend for the tests of package dataplanetest.
var underTest = dataplanetest.Backend{Open: open, Require: needIPVS, OwnConnections: true}

func TestConformance(t *testing.T) {
	t.Parallel()
	dataplanetest.Run(t, underTest)
}

func TestRandomPackets(t *testing.T) {
	t.Parallel()
	dataplanetest.Random(t, underTest, dataplanetest.RandomOptions{Packets: 2000})
}

// One value for each field, because all of them would take minutes in an emulated machine. The test
// runs alone: others delete virtual servers, and an engine reads then, whatever the namespace.
func TestEveryField(t *testing.T) {
	dataplanetest.EveryField(t, underTest, dataplanetest.FieldsOptions{OneValue: true})
}
