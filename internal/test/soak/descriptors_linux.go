package main

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// descriptors returns how many are open that are not the traffic's: TCP sockets, of which there are
// more or fewer as connections break.
func descriptors() (n int, err error) {
	files, err := os.ReadDir("/proc/self/fd")
	for _, f := range files {
		fd, err := strconv.Atoi(f.Name())
		if err != nil {
			return 0, err
		}
		if p, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil ||
			p != unix.IPPROTO_TCP {
			n++
		}
	}
	return n, err
}
