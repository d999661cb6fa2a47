// Package netns names network namespaces in the configurations of this module.
package netns

import (
	"fmt"
	"os"
)

// Namespace names a network namespace: the path of its file, such as "/run/netns/blue" or
// "/proc/1234/ns/net". Empty means the namespace of the calling thread; any other namespace needs
// CAP_SYS_ADMIN. [FD] and [Process] name namespaces without a path of their own. Unless a
// configuration says otherwise, the function that takes the configuration opens the namespace once.
type Namespace string

// FD names the namespace of a file descriptor of this process. The descriptor must be open when the
// namespace is opened.
func FD(fd int) Namespace { return Namespace(fmt.Sprintf("/proc/self/fd/%d", fd)) }

// Process names the namespace of a process.
func Process(pid int) Namespace { return Namespace(fmt.Sprintf("/proc/%d/ns/net", pid)) }

// thread is the file of the calling thread's network namespace.
const thread Namespace = "/proc/thread-self/ns/net"

// Open opens the file of the namespace.
func (n Namespace) Open() (*os.File, error) {
	if n == "" {
		n = thread
	}
	file, err := os.Open(string(n))
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	return file, nil
}
