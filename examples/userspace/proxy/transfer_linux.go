package proxy

import (
	"io"
	"net"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// transfer copies from src to dst until src ends. The kernel moves the bytes (splice), and counts
// them.
func transfer(dst, src *net.TCPConn, _ *atomic.Int64) error {
	_, err := io.Copy(dst, src)
	return err
}

// moved returns the number of bytes that a peer has sent and acknowledged. A copy may wait a long
// time until a slow reader has emptied much of a buffer; each acknowledgement shows that the reader
// reads.
func moved(c *net.TCPConn) (n int64) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { // it fails if c is closed
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			n = int64(info.Bytes_acked + info.Bytes_received)
		}
	})
	return n
}
