package diagnose

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/internal/threadns"
)

// FindNamespace returns the network namespace that has an address: the namespace of the calling
// thread (""), a namespace below /run/netns, or the namespace of a process. If the thread's
// namespace does not have the address and several other namespaces do, it returns an error. It
// needs CAP_SYS_ADMIN to look into other namespaces.
func FindNamespace(addr netip.Addr) (netns.Namespace, error) {
	names := []string{""}
	for _, pattern := range []string{"/run/netns/*", "/proc/[0-9]*/ns/net"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		names = append(names, paths...)
	}

	seen, denied, found := map[[2]uint64]bool{}, 0, ""
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Stat(cmp.Or(name, "/proc/thread-self/ns/net"), &st); err != nil {
			denied++
			continue
		}

		id := [2]uint64{st.Dev, st.Ino}
		switch {
		case seen[id] || !has(netns.Namespace(name), addr):
		case name == "":
			return "", nil
		case found != "":
			return "", fmt.Errorf("the network namespaces %s and %s have the address %v: name the "+
				"one of the client", found, name, addr)
		default:
			found = name
		}

		seen[id] = true
	}

	if found != "" {
		return netns.Namespace(found), nil
	}
	return "", fmt.Errorf("no network namespace of this machine has the address %v (%d could not "+
		"be read): name the namespace of the client; kernlb trace -live follows packets "+
		"of a client on another machine", addr, denied)
}

// has reports whether a namespace has an address.
func has(name netns.Namespace, addr netip.Addr) bool {
	ns, err := threadns.Open(name)
	if err != nil {
		return false
	}
	defer ns.Close() //nolint:errcheck // nothing was written
	found := false
	err = ns.Do(func() error {
		l, err := net.InterfaceAddrs()
		found = slices.ContainsFunc(l, func(a net.Addr) bool {
			p, err := netip.ParsePrefix(a.String())
			return err == nil && p.Addr().Unmap() == addr
		})
		return err
	})
	return err == nil && found
}
