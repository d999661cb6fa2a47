package netnstest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// errEnded is the result of a function that ended its goroutine instead of returning.
var errEnded = errors.New("the function did not return")

// onOwnThread runs f on an operating system thread that no other goroutine uses meanwhile, and
// afterwards puts the thread back into the network namespace it was in. A thread that cannot be put
// back is not used again: the runtime ends a thread whose goroutine ends while locked to it
// (runtime.LockOSThread).
func onOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errEnded
		defer func() { done <- err }()
		runtime.LockOSThread()
		home, openErr := openThreadNS()
		if openErr != nil {
			err = openErr
			runtime.UnlockOSThread()
			return
		}
		defer func() {
			if setns(home) == nil {
				runtime.UnlockOSThread()
			}
			home.Close() //nolint:errcheck // nothing was written
		}()
		err = f()
	}()
	return <-done
}

// openThreadNS opens the network namespace of the calling thread. (/proc/self is that of the
// process' first thread.)
func openThreadNS() (*os.File, error) {
	const path = "/proc/thread-self/ns/net"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// setns moves the calling thread into the namespace. The file cannot be closed meanwhile.
func setns(file *os.File) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	ctlErr := conn.Control(func(fd uintptr) {
		err = os.NewSyscallError("setns", unix.Setns(int(fd), unix.CLONE_NEWNET))
	})
	return errors.Join(ctlErr, err)
}

// newNetNS creates a network namespace.
func newNetNS() (file *os.File, err error) {
	err = onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		file, err = openThreadNS()
		return err
	})
	return file, err
}

// inNetNS is [NS.Do].
func inNetNS(ns *NS, f func() error) error {
	return onOwnThread(func() error {
		if err := setns(ns.file); err != nil {
			return fmt.Errorf("enter namespace %s: %w", ns.name, err)
		}
		return f()
	})
}

// quiet are settings of every namespace. They keep it still (no autoconfiguration, no link-local
// addresses, no redirects), let packets take any path, and let every refused probe have its ICMP
// error: the kernel limits those to one a second for each destination, and to 1,000 a second for
// all.
var quiet = [][2]string{
	{"net/ipv4/conf/all/rp_filter", "0"},
	{"net/ipv4/conf/default/rp_filter", "0"},
	{"net/ipv4/conf/all/send_redirects", "0"},
	{"net/ipv4/conf/default/send_redirects", "0"},
	{"net/ipv4/conf/all/accept_redirects", "0"},
	{"net/ipv4/conf/default/accept_redirects", "0"},
	{"net/ipv4/icmp_ratemask", "0"},
	{"net/ipv6/conf/all/accept_dad", "0"},
	{"net/ipv6/conf/default/accept_dad", "0"},
	{"net/ipv6/conf/default/accept_ra", "0"},
	{"net/ipv6/conf/default/accept_redirects", "0"},
	{"net/ipv6/conf/default/addr_gen_mode", "1"}, // IN6_ADDR_GEN_MODE_NONE
	{"net/ipv6/icmp/ratelimit", "0"},
	// limits "packet too big" only: the mask cannot be written empty
	{"net/ipv6/icmp/ratemask", "2"},
}

// prepare makes a new namespace quiet and brings its loopback interface up.
func (ns *NS) prepare() error {
	err := ns.Do(func() error {
		for _, s := range quiet {
			if err := writeSysctl(s[0], s[1]); err != nil {
				return err
			}
		}
		return loopbackUp()
	})
	if err != nil {
		return fmt.Errorf("netnstest: prepare namespace %s: %w", ns.name, err)
	}
	return nil
}

// loopbackUp brings up the loopback interface of the calling thread's namespace.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	return nil
}

// usable tells why namespaces cannot be created and configured by this process, or returns nil. The
// answer does not change while a process runs.
var usable = sync.OnceValue(func() error {
	ns, err := NewNS("trial")
	if err != nil {
		return err
	}
	return ns.Close()
})
