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
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
)

// Deprived removes what an engine needs, after it has applied a state. First it removes the
// permission to change the network: each call must report that, and when the permission is back,
// the next apply must succeed. Then it removes the name of the network namespace, which disappears
// with its last process. The namespace lives as long as something holds it, so applies must still
// work, and closing the backend must release the namespace. Deprived also closes the backend twice,
// and opens a backend in a file that is not a namespace: neither call may wait, and no error may
// say that the kernel lacks a module.
func Deprived(t *testing.T, under Backend) {
	for what, test := range map[string]func(*testing.T, Backend){
		"of permission": deprivedOfPermission, "of the namespace": deprivedOfNamespace,
		"of its sockets": deprivedOfSockets} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			test(t, under)
		})
	}
}

func deprivedOfSockets(t *testing.T, under Backend) {
	b, err := under.Open(os.DevNull)
	if err == nil || errors.Is(err, kernelerr.ErrMissingModule) {
		t.Errorf("a file that is no namespace: %v, %v", b, err)
	}
	ns := under.namespace(t)
	b, other := ok(under.Open(ns.NetNS()))(t), opened(under.Open(ns.NetNS()))(t)
	requireOthersTurn(t, b, other)
	if err := errors.Join(b.Close(), b.Close()); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	start := time.Now()
	s, _ := faultedStates()
	_, err = settled(dataplane.New(b, nil).Apply(t.Context(), s))
	if !errors.Is(err, kernelerr.ErrClosed) {
		t.Errorf("an apply of a closed backend: %v", err)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("an apply of a closed backend takes %v", d)
	}
	if i, _ := b.Integrity(t.Context()); i != backends.Broken {
		t.Errorf("the integrity that a closed backend sees: %v", i)
	}
}

// requireOthersTurn requires that the end of a context ends the wait for a turn, and that the turn
// comes once the other backend gives it back.
func requireOthersTurn(t *testing.T, b, other backends.Backend) {
	t.Helper()
	unlock := ok(other.(backends.Locker).Lock(t.Context()))(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.(backends.Locker).Lock(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a turn of another backend: %v", err)
	}
	unlock()
	ok(b.(backends.Locker).Lock(t.Context()))(t)()
}

func deprivedOfPermission(t *testing.T, under Backend) {
	f := newFaulted(t, FaultyBackend{Backend: under})
	b := opened(under.Open(f.ns.NetNS()))(t)
	e := dataplane.New(b, nil)
	ok(settled(e.Apply(t.Context(), f.from)))(t)
	for what, call := range map[string]func() error{
		"open":    func() error { return errOf(under.Open(f.ns.NetNS())) },
		"apply":   func() error { return errOf(settled(e.Apply(t.Context(), f.to))) },
		"observe": func() error { return errOf(e.Observe(t.Context())) },
		"cleanup": func() error { return errOf(e.Cleanup(t.Context())) },
	} {
		err := WithoutCapabilities(call)
		var refused *kernelerr.OpError
		switch {
		case !errors.Is(err, fs.ErrPermission) || !errors.Is(err, kernelerr.ErrNoPermission):
			t.Errorf("%s without permission: want one that says so, got %v", what, err)
		case !strings.Contains(err.Error(), b.Name()+": "):
			t.Errorf("%s: the error does not name the backend: %v", what, err)
		case !errors.As(err, &refused) || refused.Errno != unix.EPERM ||
			refused.Op+refused.Object == "":
			t.Errorf("%s: the error does not say what was refused: %v", what, err)
		case what == "open" && !strings.Contains(err.Error(),
			"open: no permission: it takes CAP_NET_ADMIN"):
			t.Errorf("the error does not say which permission is missing: %v", err)
		}
	}

	must(t, f.holds(t.Context(), f.from))
	ok(settled(e.Apply(t.Context(), f.to)))(t) // with permission again
	must(t, f.holds(t.Context(), f.to))
}

// WithoutCapabilities runs f on a thread without some effective capabilities, or without any if no
// numbers are given. The thread ends with f. The kernel checks the capabilities of the thread that
// sends a request.
func WithoutCapabilities(f func() error, numbers ...uint) error {
	return onOwnThread(func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var left [2]unix.CapUserData
		if len(numbers) > 0 {
			if err := unix.Capget(&header, &left[0]); err != nil {
				return err
			}
		}

		for _, n := range numbers {
			left[n/32].Effective &^= 1 << (n % 32)
		}
		if err := unix.Capset(&header, &left[0]); err != nil {
			return err
		}
		return f()
	})
}

// WithoutNetfilter runs f on a thread that can open no socket to netfilter, as on a kernel without
// nfnetlink. Processes that f starts cannot either. The thread ends with f.
func WithoutNetfilter(f func() error) error {
	return onOwnThread(func() error {
		// The fields of struct seccomp_data (include/uapi/linux/seccomp.h) in the filter.
		const number, protocol = 0, 32
		load, equal := uint16(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS), uint16(unix.BPF_JMP|
			unix.BPF_JEQ|unix.BPF_K)
		filter := []unix.SockFilter{
			{Code: load, K: number}, {Code: equal, K: unix.SYS_SOCKET, Jf: 3},
			{Code: load, K: protocol}, {Code: equal, K: unix.NETLINK_NETFILTER, Jf: 1},
			{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)},
			{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW},
		}
		err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER,
			uintptr(unsafe.Pointer(&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})),
			0, 0)
		if err != nil {
			return os.NewSyscallError("seccomp", err)
		}
		return f()
	})
}

// onOwnThread runs f on a thread that ends with it.
func onOwnThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		done <- f()
	}()

	return <-done
}

func deprivedOfNamespace(t *testing.T, under Backend) {
	ns := under.namespace(t)
	watch := under.namespace(t)

	// A veth is removed with the namespace of either end.
	must(t, ns.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "inside"},
			PeerName: "outside", PeerNamespace: netlink.NsFd(watch.Fd())})
	}))

	held := func() bool {
		return watch.Do(func() error {
			return errOf(netlink.LinkByName("outside"))
		}) == nil
	}

	b := ok(under.Open(ns.NetNS()))(t)
	e := dataplane.New(b, nil)
	from, to := faultedStates()
	_, err := settled(e.Apply(t.Context(), from))
	err = errors.Join(err, ns.Close())
	for range 3 {
		e.Resync()
		_, applyErr := settled(e.Apply(t.Context(), to))
		err = errors.Join(err, applyErr)
		from, to = to, from
	}

	if !held() {
		err = errors.Join(err, errors.New("the namespace went while the backend was open"))
	}
	must(t, errors.Join(err, b.Close()))
	for end := time.Now().Add(20 * time.Second); held(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the namespace is still held after the backend was closed")
		}
	}
}

// ClockJumps sets the clock of the machine forward by a day and back by two while an engine runs.
// The engine must repair and apply as before: kernlb measures its waits with the monotonic clock,
// and the kernel measures timeouts, such as session affinity, in jiffies. The test changes the
// clock of the machine, so it runs in a virtual machine only.
func ClockJumps(t *testing.T, under Backend) {
	if os.Getenv("KERNLB_VM") == "" {
		t.Skip("sets the clock of the machine: needs a virtual machine of its own")
	}
	f := newFaulted(t, FaultyBackend{Backend: under})
	e := dataplane.New(opened(under.Open(f.ns.NetNS()))(t), nil)
	stop := RunEngine(t, e, f.from)
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, jump := range []time.Duration{0, 24 * time.Hour, -48 * time.Hour, 24 * time.Hour} {
		clock := unix.NsecToTimeval(time.Now().Add(jump).UnixNano())
		must(t, unix.Settimeofday(&clock))
		if err := e.Wait(ctx, e.Set(f.to)); err != nil {
			t.Fatalf("after a jump by %v: %v", jump, err)
		}
		must(t, under.cleanup(ctx, f.ns))
		for f.holds(ctx, f.to) != nil {
			if ctx.Err() != nil {
				t.Fatalf("after a jump by %v nobody repairs", jump)
			}
			time.Sleep(50 * time.Millisecond)
		}

		f.from, f.to = f.to, f.from
	}
}
