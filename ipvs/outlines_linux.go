package ipvs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/threadns"
)

// outlines reads IPv4 virtual servers through the socket options of IPVS. One system call reads all
// of them, each with the number of its destinations, which generic netlink does not report
// (IP_VS_SO_GET_SERVICES). So it reveals virtual servers that other programs add, delete or
// configure. A second call reads the destinations of one virtual server (IP_VS_SO_GET_DESTS). This
// is fast: a dump of a server with ten destinations by generic netlink takes as long as 40 of the
// second call, or as 400 outlines of the first. IPv6 has no such options.
type outlines struct {
	// read reads a socket option. It is nil if the option does not work.
	read  func(option int, b []byte) error
	fd    int    // the socket, 0: not open
	buf   []byte // struct ip_vs_get_services
	dests []byte // struct ip_vs_get_dests
	heads []byte // the entries of a reading without their statistics
	// equal are the heads that passed the last comparison. It is empty after a commit.
	equal []byte
	due   time.Time // of the next reading
}

// outlineRoom is the initial room for outlines.
const outlineRoom = 256

// openOutlines opens a socket in the namespace.
func openOutlines(ns *threadns.NS) (outlines, error) {
	fd := -1
	err := ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return outlines{}, fmt.Errorf("open a socket for the options of IPVS: %w", err)
	}
	return outlines{fd: fd, read: func(option int, b []byte) error {
		return getsockopt(fd, option, b)
	}}, nil
}

// close closes the socket if it is open.
func (o *outlines) close() {
	if o.fd > 0 {
		unix.Close(o.fd)
	}
	*o = outlines{}
}

// getsockopt reads an option whose value begins with the request: x/sys/unix has no function for
// values of any size.
func getsockopt(fd, option int, value []byte) error {
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_IP,
		uintptr(option), uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// forget says that the known virtual servers have changed since the last comparison.
func (o *outlines) forget() { o.equal = o.equal[:0] }

// intact reports whether the IPv4 virtual servers are right, according to their outlines. It uses a
// share of the time, and returns true until the next reading is due.
func (o *outlines) intact(servers map[ipvsnl.ServiceKey]*server, share float64) (bool, error) {
	start := time.Now()
	if o.read == nil || start.Before(o.due) {
		return true, nil
	}
	if err := o.readHeads(); err != nil || o.read == nil {
		return err == nil, err
	}
	if len(o.heads) == 0 || !bytes.Equal(o.heads, o.equal) {
		if !o.hold(servers) {
			return false, nil
		}
		o.heads, o.equal = o.equal, o.heads
	}

	now := time.Now()
	o.due = now.Add(time.Duration(float64(now.Sub(start)) / share))
	return true, nil
}

// ask reads an option. If the kernel has a different layout, or no such option, read becomes nil
// and ask does not try again.
func (o *outlines) ask(option int, b []byte) error {
	err := o.read(option, b)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOPROTOOPT):
		o.read = nil
		return nil
	case err != nil:
		const op, object = "read", "virtual servers of IPv4"
		if errno, refused := err.(unix.Errno); refused {
			return &kernelerr.OpError{Op: op, Object: object, Errno: errno}
		}
		return fmt.Errorf("%s %s: %w", op, object, err)
	}

	return nil
}

// readHeads reads the heads of all outlines. Every outline in use has a protocol, even the outline
// of a virtual server by mark.
func (o *outlines) readHeads() error {
	const start, size = ipvsnl.OutlinesStart, ipvsnl.OutlineSize
	if o.buf == nil {
		o.buf = make([]byte, start+outlineRoom*size)
	}
	for {
		clear(o.buf)
		room := (len(o.buf) - start) / size
		binary.NativeEndian.PutUint32(o.buf, uint32(room))
		if err := o.ask(ipvsnl.GetServices, o.buf); err != nil || o.read == nil {
			return err
		}
		o.heads = o.heads[:0]
		for b := o.buf[start:]; len(b) > 0 && (b[0] != 0 || b[1] != 0); b = b[size:] {
			o.heads = append(o.heads, b[:len(ipvsnl.Outline{})]...)
		}
		if len(o.heads) < room*len(ipvsnl.Outline{}) {
			return nil
		}
		o.buf = make([]byte, start+2*room*size)
	}
}

// hold reports whether the heads have each of the IPv4 virtual servers, without differences.
func (o *outlines) hold(servers map[ipvsnl.ServiceKey]*server) bool {
	missing := make(map[ipvsnl.Outline]bool, len(servers))
	for k, s := range servers {
		if k.Family == ipvsnl.FamilyIPv4 {
			missing[ipvsnl.OutlineOf(s.svc, len(s.dests))] = true
		}
	}

	for b := o.heads; len(b) > 0; b = b[len(ipvsnl.Outline{}):] {
		delete(missing, ipvsnl.Outline(b))
	}
	return len(missing) == 0
}

// holdsDests reports whether the destinations of a virtual server are right. known is false if this
// cannot be read here: for IPv6, and for tunnels, because the options do not report their type.
func (o *outlines) holdsDests(s *server) (holds, known bool, err error) {
	if o.read == nil || s.svc.Family != ipvsnl.FamilyIPv4 {
		return false, false, nil
	}
	for _, d := range s.dests {
		if d.Forward == ipvsnl.ForwardTunnel {
			return false, false, nil
		}
	}

	const start, size = ipvsnl.DestinationsStart, ipvsnl.DestinationSize
	room := len(s.dests) + 1 // one more would show a surplus destination
	o.dests = slices.Grow(o.dests[:0], start+room*size)[:start+room*size]
	clear(o.dests)
	ipvsnl.PutOutlineKey(o.dests, s.svc.ServiceKey)
	binary.NativeEndian.PutUint32(o.dests[16:], uint32(room))
	err = o.ask(ipvsnl.GetDestinations, o.dests)
	if errors.Is(err, unix.ESRCH) {
		return false, true, nil
	}
	if err != nil || o.read == nil {
		return false, false, err
	}
	b := o.dests[start:]
	for ; len(b) > size; b = b[size:] {
		k, is := ipvsnl.DestinationOutlined(b)
		if want, ok := s.dests[k]; !ok || is != ipvsnl.OutlineDestinationOf(want) {
			return false, true, nil
		}
	}

	_, surplus := ipvsnl.DestinationOutlined(b)
	return surplus == ipvsnl.OutlineDestination{}, true, nil
}
