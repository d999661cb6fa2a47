//go:build !linux

package proxy

import (
	"io"
	"net"
	"sync/atomic"
)

// transfer copies from src to dst until src ends, in pieces of 32 KiB, and counts the bytes.
func transfer(dst, src *net.TCPConn, copied *atomic.Int64) error {
	_, err := io.Copy(counter{dst, copied}, src)
	return err
}

// counter counts bytes when they are read and again when they are written.
type counter struct {
	io.Writer
	copied *atomic.Int64
}

func (c counter) Write(b []byte) (int, error) {
	c.copied.Add(int64(len(b)))
	n, err := c.Writer.Write(b)
	c.copied.Add(int64(n))
	return n, err
}

func moved(*net.TCPConn) int64 { return 0 }
