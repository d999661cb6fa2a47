package threadns

import (
	"errors"
	"fmt"
	"os"
)

// At returns a file descriptor of the network namespace that a configuration names by its fields
// NetNS and NetNSPath: 0 is that of the calling thread. It is valid until release is called.
func At(fd int, path string) (ns int, release func(), err error) {
	switch {
	case fd < 0:
		return 0, nil, fmt.Errorf("NetNS: %d is not a file descriptor", fd)
	case path == "":
		return fd, func() {}, nil
	case fd > 0:
		return 0, nil, errors.New("NetNS and NetNSPath: one of them names the network namespace")
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, nil, fmt.Errorf("NetNSPath: %w", err)
	}
	return int(f.Fd()), func() { f.Close() }, nil
}
