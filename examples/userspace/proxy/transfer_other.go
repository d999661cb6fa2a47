//go:build !linux

package proxy

import (
	"io"
	"net"
	"sync/atomic"
)

// transfer copies from src to dst until src ends, and counts the bytes. Pieces are of 32 KiB.
func transfer(dst, src *net.TCPConn, copied *atomic.Int64) error {
	_, err := io.Copy(counter{dst, copied}, src)
	return err
}

// counter counts what is written, when it is read and when it is written.
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
