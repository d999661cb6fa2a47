package netnstest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/internal/threadns"
)

func newNetNS() (file *os.File, err error) {
	err = threadns.OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		file, err = netns.Namespace("").Open()
		return err
	})
	return file, err
}

// inNetNS is [NS.Do].
func inNetNS(ns *NS, f func() error) error { return threadns.In(ns.file, f) }

// quiet are settings of every namespace. They switch off unwanted traffic (autoconfiguration,
// link-local addresses, redirects), and let packets use any path. They also lift the limits of ICMP
// errors, so that every refused probe gets an error: the kernel's default limits are one error a
// second for each destination, and 1,000 a second for all destinations.
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
	// limits only "packet too big", because the mask cannot be written empty
	{"net/ipv6/icmp/ratemask", "2"},
}

// prepare makes a new namespace quiet and brings its loopback interface up. IPv6 settings are
// missing if the kernel was booted with ipv6.disable=1.
func (ns *NS) prepare() error {
	err := ns.Do(func() error {
		_, err := os.Stat("/proc/sys/net/ipv6")
		noIPv6 := errors.Is(err, fs.ErrNotExist)
		for _, s := range quiet {
			if noIPv6 && strings.HasPrefix(s[0], "net/ipv6/") {
				continue
			}
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

// usable returns the reason why this process cannot create and configure namespaces, or nil. The
// answer does not change while a process runs.
var usable = sync.OnceValue(func() error {
	ns, err := NewNS("trial")
	if err != nil {
		return err
	}
	return ns.Close()
})
