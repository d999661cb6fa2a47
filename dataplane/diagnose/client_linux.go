package diagnose

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/servicemodel"
)

const (
	// answerLimit is the time that an endpoint has to answer. A lost packet is sent again after a
	// second.
	answerLimit = 1500 * time.Millisecond
	// flowTimeout is the lifetime of a flow that sends a connection to an endpoint.
	flowTimeout = 10 * time.Second
	// mostPorts is the maximum number of ports that are tried for a connection.
	mostPorts = 16
	// segmentTries and segmentLimit are for segments that are sent to an open connection.
	segmentTries = 3
	segmentLimit = 300 * time.Millisecond
	// searchTries replaces segmentTries in the search for the largest segment that passes.
	searchTries = 2
)

// socket is a socket of the client, and the flow that sends its packets to an endpoint.
type socket struct {
	fd       int
	protocol servicemodel.Protocol
	src, dst netip.AddrPort
	flow     *conntrack.Flow
}

// errInUse says that a flow has the addresses and ports of a connection.
var errInUse = errors.New("its addresses and ports are in use")

// socket returns a socket for a connection to the service, or through the service to one endpoint.
// If an earlier flow has its addresses and ports, it tries another port.
func (r *runner) socket(ctx context.Context, to *servicemodel.Candidate) (*socket, error) {
	for tries := 1; ; tries++ {
		s, err := r.oneSocket(ctx, to)
		if err == nil {
			return s, nil
		}
		defer s.close() //nolint:errcheck // until then the next socket gets another port
		if tries == mostPorts || !errors.Is(err, errInUse) {
			return nil, err
		}
	}
}

// oneSocket is [runner.socket] for one port. If it returns an error, the socket is still open.
func (r *runner) oneSocket(ctx context.Context, to *servicemodel.Candidate) (*socket, error) {
	s := &socket{fd: -1, dst: r.packet.Dst, protocol: r.To.Protocol}
	if to != nil && r.Direct {
		s.dst = to.Endpoint
	}
	err := r.client.Do(func() error { return s.open(r.report.Client) })
	if err != nil {
		return s, fmt.Errorf("send from %v: %w", r.report.Client, err)
	}
	if to == nil || r.Direct {
		return s, nil
	}
	return s, r.aim(ctx, s, to)
}

// open opens the socket on a thread in the namespace of the client.
func (s *socket) open(src netip.Addr) (err error) {
	kind, family := unix.SOCK_STREAM, unix.AF_INET
	if s.protocol == servicemodel.UDP {
		kind = unix.SOCK_DGRAM
	}
	if s.dst.Addr().Is6() {
		family = unix.AF_INET6
	}
	s.fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(s.fd, sockaddr(netip.AddrPortFrom(src, 0))); err != nil {
		return err
	}
	name, err := unix.Getsockname(s.fd)
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		s.src = netip.AddrPortFrom(src, uint16(name.Port))
	case *unix.SockaddrInet6:
		s.src = netip.AddrPortFrom(src, uint16(name.Port))
	}

	return err
}

// aim creates the flow that sends the packets of the socket, and only these, to an endpoint.
func (r *runner) aim(ctx context.Context, s *socket, to *servicemodel.Candidate) error {
	f := conntrack.Flow{Protocol: conntrack.Protocol(s.protocol), Timeout: flowTimeout,
		Original: conntrack.Tuple{Src: s.src, Dst: s.dst},
		Reply:    conntrack.Tuple{Src: to.Endpoint, Dst: s.src}}
	if s.protocol == servicemodel.TCP {
		f.TCP = tcpSynSent
	}
	if to.Masquerade {
		r.mu.Lock()
		routes, err := r.routes.RouteGet(to.Endpoint.Addr().AsSlice(), 0)
		r.mu.Unlock()
		if err == nil && len(routes) > 0 {
			if own, ok := netip.AddrFromSlice(routes[0].Src); ok {
				f.Reply.Dst = netip.AddrPortFrom(own.Unmap(), s.src.Port())
			}
		}
	}

	n, err := r.table.Create(ctx, conntrack.All(f))
	if err == nil && n == 0 {
		err = errInUse
	}
	s.flow = &f
	return err
}

// close closes the socket. Its flow expires.
func (s *socket) close() error {
	if s.fd < 0 {
		return nil
	}
	return unix.Close(s.fd)
}

func (s *socket) begin() error {
	err := unix.Connect(s.fd, sockaddr(s.dst))
	if err == nil && s.protocol == servicemodel.UDP {
		_, err = unix.Write(s.fd, []byte{0})
	}
	switch err {
	// If a rule of the client's machine drops or refuses a packet at once, the call fails, too.
	case nil, unix.EINPROGRESS, unix.EPERM, unix.ECONNREFUSED:
		return nil
	}

	if errors.Is(err, unix.ENETUNREACH) {
		return fmt.Errorf("send to %v: %w: there is no route to it, see docs/sharing.md", s.dst,
			err)
	}
	return fmt.Errorf("send to %v: %w", s.dst, err)
}

// result is the result of a connection to an endpoint.
type result struct {
	answered, refused, silent bool

	says  string
	fault *Fault // of an endpoint that answers
}

func (r *runner) ask(ctx context.Context, to *servicemodel.Candidate) result {
	s, err := r.socket(ctx, to)
	if err != nil {
		return result{says: notAsked(err)}
	}
	defer s.close() //nolint:errcheck // nothing is lost
	if err := s.begin(); err != nil {
		return result{says: notAsked(err)}
	}
	err = s.wait(ctx)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return result{refused: true, says: "refuses connections"}
	case errors.Is(err, errSilent):
		return result{silent: true, says: "does not answer"}
	case err != nil: // such as an ICMP error
		return result{silent: true, says: "does not answer: " + err.Error()}
	}

	got := result{answered: true, says: "answers"}
	if s.protocol != servicemodel.TCP {
		return got
	}
	size, passed, err := r.fullSize(ctx, s)
	switch {
	case err != nil:
		got.says = fmt.Sprintf("answers; full-size segments were not tested: %v", err)
	case passed < size:
		got.says = fmt.Sprintf("answers, and loses segments of %d bytes", size)
		got.fault = &Fault{FullSize, fmt.Sprintf("%v acknowledges segments of %d bytes and not "+
			"of %d: packets of more than %d bytes are lost on the way, and no ICMP error tells "+
			"the client", to.Endpoint, passed, size, passed+headers(s.dst.Addr())),
			"compare the MTU of all links on the way (ip link), and let ICMP " +
				"\"fragmentation needed\" and \"packet too big\" pass"}
	default:
		got.says = fmt.Sprintf("answers, also segments of %d bytes", size)
	}

	return got
}

// notAsked says in short why an endpoint was not asked.
func notAsked(err error) string {
	var code unix.Errno
	switch {
	case errors.Is(err, conntrack.ErrTableFull):
		return "not asked: the table of connections is full"
	case errors.Is(err, errInUse):
		return fmt.Sprintf("not asked: earlier connections use %d ports of the client", mostPorts)
	case errors.As(err, &code):
		return "not asked: " + code.Error()
	}

	return "not asked: " + err.Error()
}

var errSilent = errors.New("no answer")

func (s *socket) wait(ctx context.Context) error {
	events := int16(unix.POLLOUT) // a connection
	if s.protocol == servicemodel.UDP {
		events = unix.POLLIN
	}
	end := time.Now().Add(answerLimit)
	for {
		fds := []unix.PollFd{{Fd: int32(s.fd), Events: events}}
		n, err := unix.Poll(fds, 50)
		switch {
		case err != nil && err != unix.EINTR:
			return err
		case n > 0:
			code, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if err == nil && code != 0 {
				err = unix.Errno(code)
			}
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(end):
			return errSilent
		}
	}
}

// headers is the length of the headers of a segment without options.
func headers(to netip.Addr) int {
	if to.Is4() {
		return 20 + 20
	}
	return 40 + 20
}

// fullSize returns the size of a segment of full size, and the size of the largest segment that is
// acknowledged. The data of the segments is older than all data of the connection, so the endpoint
// only acknowledges it (RFC 9293, section 3.10.7.4). First, a segment of one byte shows whether the
// endpoint acknowledges such data.
func (r *runner) fullSize(ctx context.Context, s *socket) (size, passed int, err error) {
	size, err = s.segmentSize()
	if err != nil {
		return size, 0, err
	}
	var raw int
	err = r.client.Do(func() (err error) {
		raw, err = rawTCP(s.src)
		return err
	})
	if err != nil {
		return size, 0, err
	}
	defer unix.Close(raw) //nolint:errcheck // nothing is lost
	sent, received, err := s.sequence()
	if err != nil {
		return size, 0, err
	}
	for i, n := range []int{1, size} {
		ok, err := s.acknowledges(ctx, raw, sent, received, n, segmentTries)
		switch {
		case errors.Is(err, unix.EMSGSIZE):
			return size, size, nil // the client has learnt the path MTU
		case err != nil:
			return size, 0, err
		case !ok && i == 0:
			return size, 0, errors.New("it does not acknowledge old data")
		case ok:
			passed = n
		}
	}

	for lost := size; passed+1 < lost && passed < size; {
		n := (passed + lost) / 2
		ok, err := s.acknowledges(ctx, raw, sent, received, n, searchTries)
		if err != nil {
			return size, passed, nil //nolint:nilerr // the loss is known, its limit only in part
		}
		if ok {
			passed = n
		} else {
			lost = n
		}
	}

	return size, passed, nil
}

// segmentSize returns the size of the largest segments without options: with options, segments have
// less data.
func (s *socket) segmentSize() (int, error) {
	size, err := unix.GetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	if err != nil {
		return size, err
	}
	info, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err == nil && info.Options&1 != 0 { // TCPI_OPT_TIMESTAMPS
		size += 12
	}
	return size, err
}

// rawTCP opens a socket for segments that must not be fragmented.
func rawTCP(src netip.AddrPort) (fd int, err error) {
	family, level, option := unix.AF_INET, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER
	if src.Addr().Is6() {
		family, level, option = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER
	}
	fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return -1, err
	}
	err = unix.SetsockoptInt(fd, level, option, unix.IP_PMTUDISC_DO)
	if err == nil {
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(src.Addr(), 0)))
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// Values for the repair of TCP connections (TCP_REPAIR, include/uapi/linux/tcp.h).
const (
	repairOn, repairOff       = 1, -1 // off without a segment
	repairReceive, repairSend = 1, 2
)

// sequence returns the sequence numbers of the next bytes that the connection sends and receives.
func (s *socket) sequence() (sent, received uint32, err error) {
	set := func(option, value int) {
		if err == nil {
			err = unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, option, value)
		}
	}

	get := func(queue int) uint32 {
		set(unix.TCP_REPAIR_QUEUE, queue)
		n := 0
		if err == nil {
			n, err = unix.GetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
		}
		return uint32(n)
	}

	set(unix.TCP_REPAIR, repairOn)
	if err != nil {
		return 0, 0, err
	}
	sent, received = get(repairSend), get(repairReceive)
	return sent, received, errors.Join(err, unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP,
		unix.TCP_REPAIR, repairOff))
}

// acknowledges reports whether the endpoint acknowledges n old bytes.
func (s *socket) acknowledges(ctx context.Context, raw int, next, received uint32, n,
	tries int) (ok bool, err error) {
	before, err := s.acks()
	if err != nil {
		return false, err
	}
	segment := oldSegment(s.src, s.dst, next-uint32(n), received, n)
	for sent, all := uint32(1), uint32(tries); sent <= all && !ok; sent++ {
		if err := unix.Sendto(raw, segment, 0,
			sockaddr(netip.AddrPortFrom(s.dst.Addr(), 0))); err != nil {
			return false, err
		}

		// A late answer to an earlier try must not count for the next size.
		for end := time.Now().Add(segmentLimit); time.Now().Before(end); {
			now, err := s.acks()
			if err = cmp.Or(err, ctx.Err()); err != nil {
				return false, err
			}
			if ok = now > before; now >= before+sent {
				return true, nil
			}
			time.Sleep(time.Millisecond)
		}
	}

	return ok, nil
}

// acks returns the number of received segments without data.
func (s *socket) acks() (uint32, error) {
	i, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, err
	}
	return i.Segs_in - i.Data_segs_in, nil
}

// oldSegment returns a TCP segment with n bytes of data.
func oldSegment(src, dst netip.AddrPort, sequence, ack uint32, n int) []byte {
	const header, flagACK = 20, 0x10
	b := make([]byte, header+n)
	binary.BigEndian.PutUint16(b[0:], src.Port())
	binary.BigEndian.PutUint16(b[2:], dst.Port())
	binary.BigEndian.PutUint32(b[4:], sequence)
	binary.BigEndian.PutUint32(b[8:], ack)
	b[12], b[13] = header/4<<4, flagACK
	binary.BigEndian.PutUint16(b[14:], 0xffff)
	sum := uint32(unix.IPPROTO_TCP) + uint32(len(b))
	for _, part := range [][]byte{src.Addr().AsSlice(), dst.Addr().AsSlice(), b} {
		for i := range part {
			if i%2 == 0 {
				sum += uint32(part[i]) << 8
			} else {
				sum += uint32(part[i])
			}
		}
	}

	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[16:], ^uint16(sum))
	return b
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}
