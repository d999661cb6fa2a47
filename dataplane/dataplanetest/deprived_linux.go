package dataplanetest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// Deprived takes from an engine what it needs, after it has applied a state: the permission to
// change the network, and the name of the network namespace, which goes with its last process. With
// the permission, the next apply succeeds; a namespace lives as long as somebody holds it, so
// applies go on, and closing the backend lets go of it.
func Deprived(t *testing.T, under Backend) {
	under.need(t)
	netnstest.Require(t)
	t.Run("of permission", func(t *testing.T) {
		t.Parallel()
		deprivedOfPermission(t, under)
	})
	t.Run("of the namespace", func(t *testing.T) {
		t.Parallel()
		deprivedOfNamespace(t, under)
	})
}

func deprivedOfPermission(t *testing.T, under Backend) {
	ns, err := netnstest.NewNS(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	b, err := under.Open(ns.Fd())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	f := &faulted{t: t, under: FaultyBackend{Backend: under}, ns: ns}
	f.from, f.to = faultedStates()
	e := dataplane.New(b, nil)
	if _, err := e.Apply(t.Context(), f.from); err != nil {
		t.Fatal(err)
	}
	err = WithoutCapabilities(func() error {
		_, err := e.Apply(t.Context(), f.to)
		return err
	})
	switch {
	case !errors.Is(err, fs.ErrPermission):
		t.Fatalf("without permission: want one that wraps %v, got %v", fs.ErrPermission, err)
	case !strings.Contains(err.Error(), b.Name()+": "):
		t.Errorf("the error does not name the backend: %v", err)
	}
	if err := f.holds(t.Context(), f.from); err != nil {
		t.Errorf("without permission: %v", err)
	}
	if _, err := e.Apply(t.Context(), f.to); err != nil {
		t.Fatalf("with permission again: %v", err)
	}
	if err := f.holds(t.Context(), f.to); err != nil {
		t.Errorf("with permission again: %v", err)
	}
}

// WithoutCapabilities runs f on a thread that has no effective capabilities, and ends with it. The
// kernel looks at those of the thread that sends a request.
func WithoutCapabilities(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		none := [2]unix.CapUserData{}
		if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3},
			&none[0]); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func deprivedOfNamespace(t *testing.T, under Backend) {
	ns, err := netnstest.NewNS(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	watch, err := netnstest.NewNS(t.Name() + " watch")
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	// A veth goes with the namespace of either end.
	if err := ns.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "inside"},
			PeerName: "outside", PeerNamespace: netlink.NsFd(watch.Fd())})
	}); err != nil {
		t.Fatal(err)
	}
	held := func() bool {
		return watch.Do(func() error {
			_, err := netlink.LinkByName("outside")
			return err
		}) == nil
	}
	b, err := under.Open(ns.Fd())
	if err != nil {
		t.Fatal(err)
	}
	e := dataplane.New(b, nil)
	from, to := faultedStates()
	_, err = e.Apply(t.Context(), from)
	err = errors.Join(err, ns.Close())
	for range 3 {
		e.Resync()
		_, applyErr := e.Apply(t.Context(), to)
		err = errors.Join(err, applyErr)
		from, to = to, from
	}
	if !held() {
		err = errors.Join(err, errors.New("the namespace went while the backend was open"))
	}
	if err := errors.Join(err, b.Close()); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); held(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the namespace is still held after the backend was closed")
		}
	}
}

// ClockJumps sets the clock of the machine forward by a day and back by two while an engine runs:
// it repairs and applies as before. All that kernlb waits for is measured with the monotonic clock,
// and all that a backend leaves to the kernel, such as session affinity, in jiffies. Since it is
// the clock of the machine, this runs in a virtual machine only.
func ClockJumps(t *testing.T, under Backend) {
	if os.Getenv("KERNLB_VM") == "" {
		t.Skip("sets the clock of the machine: needs a virtual machine of its own")
	}
	under.need(t)
	ns, err := netnstest.NewNS(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	b, err := under.Open(ns.Fd())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	e := dataplane.New(b, nil)
	f := &faulted{t: t, under: FaultyBackend{Backend: under}, ns: ns}
	f.from, f.to = faultedStates()
	stop := RunEngine(t, e, f.from)
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, jump := range []time.Duration{0, 24 * time.Hour, -48 * time.Hour, 24 * time.Hour} {
		if err := setClock(jump); err != nil {
			t.Fatal(err)
		}
		if err := e.Wait(ctx, e.Set(f.to)); err != nil {
			t.Fatalf("after a jump by %v: %v", jump, err)
		}
		if err := (&killing{t: t, under: under, ns: ns}).cleanup(); err != nil {
			t.Fatal(err)
		}
		for f.holds(ctx, f.to) != nil {
			if ctx.Err() != nil {
				t.Fatalf("after a jump by %v nobody repairs", jump)
			}
			time.Sleep(50 * time.Millisecond)
		}
		f.from, f.to = f.to, f.from
	}
}

// setClock sets the clock of the machine forward, or back.
func setClock(by time.Duration) error {
	tv := unix.NsecToTimeval(time.Now().Add(by).UnixNano())
	return unix.Settimeofday(&tv)
}
