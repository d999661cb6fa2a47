package netnstest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"

	"github.com/kernlb/kernlb/dataplane/netns"
)

// errClosed is returned by methods of an NS after Close.
var errClosed = errors.New("namespace is closed")

// NS is an anonymous network namespace. It has no name in the file system. It lives as long as its
// file descriptor, or a socket in it. Its methods are safe for concurrent use.
type NS struct {
	name string
	file *os.File

	mu    sync.Mutex
	owned map[io.Closer]struct{} // objects in the namespace; nil once closed
	pulse *pulse                 // made when first needed
	ports sourcePorts
	sctp  sctpServers
}

// NewNS creates an empty network namespace whose loopback interface is up. The name is for error
// messages.
func NewNS(name string) (*NS, error) {
	file, err := newNetNS()
	if err != nil {
		return nil, fmt.Errorf("netnstest: create network namespace %s: %w", name, err)
	}
	ns := &NS{name: name, file: file, owned: map[io.Closer]struct{}{}}
	if err := ns.prepare(); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

// NetNS names the namespace, for configurations of this module. The name is valid in this process
// until Close.
func (ns *NS) NetNS() netns.Namespace { return netns.FD(ns.Fd()) }

// Fd returns the file descriptor of the namespace, for other libraries. It is valid until Close.
func (ns *NS) Fd() int { return int(ns.file.Fd()) }

// Do runs f inside the namespace, on a separate operating system thread. The thread is reused only
// if it can return to its previous namespace. Sockets that f opens belong to the namespace,
// wherever they are used. Goroutines that f starts do not run in the namespace. Do may be nested. f
// must not call functions such as [testing.T.FailNow], which end the calling goroutine.
func (ns *NS) Do(f func() error) error {
	return inNetNS(ns, f)
}

// Close closes everything that this package opened in the namespace, and then releases the
// namespace. Closing twice is not an error.
func (ns *NS) Close() error {
	ns.mu.Lock()
	owned := ns.owned
	ns.owned = nil
	ns.mu.Unlock()
	if owned == nil {
		return nil
	}
	var errs []error
	for c := range owned {
		errs = append(errs, c.Close())
	}
	return errors.Join(append(errs, ns.file.Close())...)
}

// own makes Close of the namespace close c. It fails if the namespace is already closed.
func (ns *NS) own(c io.Closer) error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.owned == nil {
		return errClosed
	}
	ns.owned[c] = struct{}{}
	return nil
}

// disown undoes own after c was closed separately.
func (ns *NS) disown(c io.Closer) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	delete(ns.owned, c)
}

// Sysctl returns a setting of the namespace. The key has slashes, as under /proc/sys:
// "net/ipv4/ip_forward".
func (ns *NS) Sysctl(key string) (string, error) {
	var value []byte
	err := ns.Do(func() (err error) {
		value, err = os.ReadFile(sysctlPath(key))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("netnstest: %s: read sysctl %s: %w", ns.name, key, err)
	}
	return strings.TrimSpace(string(value)), nil
}

// SetSysctl changes a setting of the namespace; see [NS.Sysctl] for the key.
func (ns *NS) SetSysctl(key, value string) error {
	err := ns.Do(func() error { return writeSysctl(key, value) })
	if err != nil {
		return fmt.Errorf("netnstest: %s: %w", ns.name, err)
	}
	return nil
}

// sysctlPath is the file of a sysctl. The kernel looks up /proc/sys/net in the network namespace of
// the calling thread, not of the process (net_ctl_header_lookup in net/sysctl_net.c). So inside Do,
// no mount and no other path is needed.
func sysctlPath(key string) string { return path.Join("/proc/sys", key) }

// writeSysctl must run inside [NS.Do].
func writeSysctl(key, value string) error {
	if err := os.WriteFile(sysctlPath(key), []byte(value), 0); err != nil {
		return fmt.Errorf("write sysctl %s = %s: %w", key, value, err)
	}
	return nil
}
