package ipvs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/threadns"
)

// outlines reads virtual servers of IPv4 through the socket options of IPVS. One system call reads
// all of them, each with the number of its destinations, which generic netlink does not tell
// (IP_VS_SO_GET_SERVICES): what others add or delete, and how they configure a virtual server,
// shows in it. Another one reads the destinations of one (IP_VS_SO_GET_DESTS). What generic netlink
// takes for a virtual server with ten destinations is enough for 40 of the second, and 400 outlines
// of the first. There are no such options for IPv6.
//
// The layouts are those of kernels that align 64-bit numbers to 8 bytes. Others refuse the sizes.
type outlines struct {
	// read reads a socket option, nil where that does not work.
	read  func(option int, b []byte) error
	fd    int    // the socket, 0: there is none
	buf   []byte // struct ip_vs_get_services
	dests []byte // struct ip_vs_get_dests
	heads []byte // the entries of a reading without their statistics
	// equal are the heads that were compared last and found to be as they should; none, once
	// something was committed.
	equal []byte
	due   time.Time // of the next reading
}

// The layouts of struct ip_vs_get_services, ip_vs_service_entry, ip_vs_get_dests and
// ip_vs_dest_entry (include/uapi/linux/ip_vs.h).
const (
	outlinesStart = 8
	outlineSize   = 104
	outlineHead   = 48 // up to the statistics

	outlineRoom = 256 // how many there is room for at first

	destsStart = 24
	destSize   = 96

	forwardMask = 0x7 // IP_VS_CONN_F_FWD_MASK
)

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

// close closes the socket, if there is one.
func (o *outlines) close() {
	if o.fd > 0 {
		unix.Close(o.fd)
	}
	*o = outlines{}
}

// getsockopt reads an option whose value begins with what is asked for: x/sys/unix has none for
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

// forget says that the virtual servers are no longer what they were compared with.
func (o *outlines) forget() { o.equal = o.equal[:0] }

// intact reports whether the virtual servers of IPv4 are as they should be, as far as their
// outlines tell. It takes a share of the time, and is true until it is due again.
func (o *outlines) intact(servers map[ipvsnl.ServiceKey]*server, share float64) (bool, error) {
	start := time.Now()
	if o.read == nil || start.Before(o.due) {
		return true, nil
	}
	if err := o.readHeads(); err != nil || o.read == nil {
		return err == nil, err
	}
	if !bytes.Equal(o.heads, o.equal) {
		if !holdsOutlines(o.heads, servers) {
			return false, nil
		}
		o.heads, o.equal = o.equal, o.heads
	}
	now := time.Now()
	o.due = now.Add(time.Duration(float64(now.Sub(start)) / share))
	return true, nil
}

// ask reads an option. It is not asked for again where the kernel has another layout, or none: then
// read is nil.
func (o *outlines) ask(option int, b []byte) error {
	err := o.read(option, b)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOPROTOOPT):
		o.read = nil
		return nil
	case err != nil:
		return fmt.Errorf("read virtual servers of IPv4: %w", err)
	}
	return nil
}

// readHeads reads the heads of all outlines.
func (o *outlines) readHeads() error {
	if o.buf == nil {
		o.buf = make([]byte, outlinesStart+outlineRoom*outlineSize)
	}
	for {
		clear(o.buf)
		room := (len(o.buf) - outlinesStart) / outlineSize
		binary.NativeEndian.PutUint32(o.buf, uint32(room))
		if err := o.ask(ipvsnl.GetServices, o.buf); err != nil || o.read == nil {
			return err
		}
		o.heads = o.heads[:0]
		for at := outlinesStart; at < len(o.buf) && named(o.buf[at:]); at += outlineSize {
			o.heads = append(o.heads, o.buf[at:at+outlineHead]...)
		}
		if len(o.heads) < room*outlineHead {
			return nil
		}
		o.buf = make([]byte, outlinesStart+2*room*outlineSize)
	}
}

// named reports whether an outline is one: all have a protocol, those by mark too.
func named(outline []byte) bool { return binary.NativeEndian.Uint16(outline) != 0 }

// holdsOutlines reports whether each of the virtual servers of IPv4 is among the heads, as it
// should be.
func holdsOutlines(heads []byte, servers map[ipvsnl.ServiceKey]*server) bool {
	missing := 0
	for k := range servers {
		if k.Family == ipvsnl.FamilyIPv4 {
			missing++
		}
	}
	for ; len(heads) > 0; heads = heads[outlineHead:] {
		s := servers[outlineKey(heads)]
		if s == nil {
			continue
		}
		if !holdsOutline(heads[:outlineHead], s) {
			return false
		}
		missing--
	}
	return missing == 0
}

// outlineKey is the virtual server that an outline is of. The kernel says TCP of one by mark.
func outlineKey(head []byte) ipvsnl.ServiceKey {
	if mark := binary.NativeEndian.Uint32(head[12:]); mark != 0 {
		return ipvsnl.MarkService(ipvsnl.FamilyIPv4, mark)
	}
	return ipvsnl.AddressService(ipvsnl.Protocol(binary.NativeEndian.Uint16(head)),
		netip.AddrPortFrom(netip.AddrFrom4([4]byte(head[4:])), binary.BigEndian.Uint16(head[8:])))
}

// holdsOutline reports whether a virtual server is as its outline says.
func holdsOutline(head []byte, s *server) bool {
	name, _, _ := bytes.Cut(head[16:32], []byte{0})
	u32 := func(at int) uint32 { return binary.NativeEndian.Uint32(head[at:]) }
	return string(name) == s.svc.Scheduler &&
		ipvsnl.ServiceFlags(u32(32))&^ipvsnl.FlagHashed == s.svc.Flags &&
		time.Duration(u32(36))*time.Second == s.svc.Timeout &&
		ipvsnl.IPv4Netmask([4]byte(head[40:])) == s.svc.Netmask &&
		u32(44) == uint32(len(s.dests))
}

// holdsDests reports whether the destinations of a virtual server are as they should be, where that
// can be known: of IPv4, and not for tunnels, whose type the kernel does not tell here.
func (o *outlines) holdsDests(s *server) (holds, known bool, err error) {
	if o.read == nil || s.svc.Family != ipvsnl.FamilyIPv4 {
		return false, false, nil
	}
	for _, d := range s.dests {
		if d.Forward == ipvsnl.ForwardTunnel {
			return false, false, nil
		}
	}
	room := len(s.dests) + 1 // one more would show
	o.dests = slices.Grow(o.dests[:0], destsStart+room*destSize)[:destsStart+room*destSize]
	clear(o.dests)
	putOutlineKey(o.dests, s.svc.ServiceKey)
	binary.NativeEndian.PutUint32(o.dests[16:], uint32(room))
	err = o.ask(ipvsnl.GetDestinations, o.dests)
	if errors.Is(err, unix.ESRCH) {
		return false, true, nil
	}
	if err != nil || o.read == nil {
		return false, false, err
	}
	for at := destsStart; at < len(o.dests)-destSize; at += destSize {
		if d := outlineDest(o.dests[at:]); s.dests[d.DestinationKey] != d {
			return false, true, nil
		}
	}
	return outlineDest(o.dests[len(o.dests)-destSize:]).Addr.IsUnspecified(), true, nil
}

// putOutlineKey writes the virtual server whose destinations are asked for.
func putOutlineKey(b []byte, k ipvsnl.ServiceKey) {
	binary.NativeEndian.PutUint32(b[12:], k.FWMark)
	if k.FWMark == 0 {
		binary.NativeEndian.PutUint16(b, uint16(k.Protocol))
		copy(b[4:8], k.Addr.AsSlice())
		binary.BigEndian.PutUint16(b[8:], k.Port)
	}
}

// outlineDest decodes a destination.
func outlineDest(b []byte) ipvsnl.Destination {
	u32 := func(at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
	return ipvsnl.Destination{
		DestinationKey: ipvsnl.DestinationKey{Addr: netip.AddrFrom4([4]byte(b)),
			Port: binary.BigEndian.Uint16(b[4:])},
		Forward: ipvsnl.ForwardingMethod(u32(8) & forwardMask), Weight: u32(12),
		UpperThreshold: u32(16), LowerThreshold: u32(20),
	}
}
