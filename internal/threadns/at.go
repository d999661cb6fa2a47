package threadns

import (
	"errors"
	"fmt"
	"os"
)

// OpenAt holds the network namespace that the fields NetNS and NetNSPath of a configuration name.
func OpenAt(fd int, path string) (*NS, error) {
	fd, release, err := At(fd, path)
	if err != nil {
		return nil, err
	}
	defer release()
	return Open(fd)
}

// At returns a file descriptor of the network namespace that the fields NetNS and NetNSPath of a
// configuration name. 0 means the calling thread's namespace. The descriptor is valid until release
// is called.
func At(fd int, path string) (ns int, release func(), err error) {
	switch {
	case fd < 0:
		return 0, nil, fmt.Errorf("NetNS: %d is not a file descriptor", fd)
	case path == "":
		return fd, func() {}, nil
	case fd > 0:
		return 0, nil, errors.New("NetNS and NetNSPath: both are set; set one")
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, nil, fmt.Errorf("NetNSPath: %w", err)
	}
	return int(f.Fd()), func() { f.Close() }, nil
}
