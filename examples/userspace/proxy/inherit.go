package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/kernlb/kernlb/servicemodel"
)

// inherit makes listeners of sockets that listen already. It closes the files.
func (b *Backend) inherit(files []*os.File) error {
	var errs []error
	for i, f := range files {
		w, l, err := asListener(f)
		if err != nil {
			errs = append(errs, fmt.Errorf("inherited socket %d: %w", i, err))
		} else if b.inherited[w] != nil {
			_ = l.Close() // it was passed twice
		} else {
			b.inherited[w] = l
		}
		_ = f.Close() // the listener has a copy
	}
	if len(errs) > 0 {
		b.disinherit()
	}
	return errors.Join(errs...)
}

// asListener makes a listener of a file, and says where it listens.
func asListener(f *os.File) (where, io.Closer, error) {
	l, err := net.FileListener(f)
	if err != nil {
		return datagrams(f)
	}
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		return where{servicemodel.TCP, unmapped(a.AddrPort())}, l, nil
	}
	return where{}, nil, errors.Join(fmt.Errorf("listens at %v: want TCP or UDP", l.Addr()),
		l.Close())
}

func datagrams(f *os.File) (where, io.Closer, error) {
	c, err := net.FilePacketConn(f)
	if err != nil {
		return where{}, nil, fmt.Errorf("is no socket that listens: %w", err)
	}
	if a, ok := c.LocalAddr().(*net.UDPAddr); ok {
		return where{servicemodel.UDP, unmapped(a.AddrPort())}, c, nil
	}
	return where{}, nil, errors.Join(fmt.Errorf("receives at %v: want TCP or UDP", c.LocalAddr()),
		c.Close())
}

// disinherit closes the inherited sockets that are not in use.
func (b *Backend) disinherit() {
	for w, l := range b.inherited {
		if b.sockets[w] == nil {
			_ = l.Close()
			b.cfg.Logger.Warn("an inherited socket is closed: no service is there", "socket",
				w.String())
		}
	}
	clear(b.inherited)
}

// Sockets returns copies of the sockets that listen now, for [Config.Inherited] of another process,
// or of another proxy. Clients see one queue, from which both take until one of them stops. The
// caller closes the files. It needs a system that has file descriptors, as all but Windows.
func (b *Backend) Sockets() ([]*os.File, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var files []*os.File
	for w, s := range b.sockets {
		var c syscall.Conn = s.tcp
		if s.udp != nil {
			c = s.udp
		}
		f, err := copySocket(c)
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			return nil, fmt.Errorf("proxy: copy the socket at %v: %w", w, err)
		}
		files = append(files, f)
	}
	return files, nil
}

// listenTCP listens at an address.
func (b *Backend) listenTCP(at netip.AddrPort) (l *net.TCPListener, err error) {
	err = b.cfg.Within(func() (err error) {
		l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
		return err
	})
	return l, err
}

// listenUDP receives at an address.
func (b *Backend) listenUDP(at netip.AddrPort) (l *net.UDPConn, err error) {
	err = b.cfg.Within(func() (err error) {
		l, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	return l, err
}
