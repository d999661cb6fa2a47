package netnstest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/servicemodel"
)

// step examines a socket, without waiting, and reports whether that decides the outcome.
type step func(fd int) (o Outcome, decided bool)

// poller waits for a socket: pollRead or pollWrite.
type poller func(func(fd int) bool) error

// send is [Probe.Send] without the clock.
func (p Probe) send(ctx context.Context) Outcome {
	if err := p.check(); err != nil {
		return Outcome{Err: err}
	}
	s, port, err := p.open()
	if err != nil {
		return Outcome{Err: fmt.Errorf("open socket: %w", err)}
	}
	defer s.Close() //nolint:errcheck // the outcome is known
	var o Outcome
	switch p.Proto {
	case servicemodel.TCP:
		o = p.sendTCP(ctx, s)
	case servicemodel.UDP:
		o = p.exchange(ctx, s, []byte("probe\n"), answerUDP)
	case servicemodel.SCTP:
		o = p.sendSCTP(ctx, s, port)
	}

	o.Local = netip.AddrPortFrom(s.localAddr(), port)
	return o
}

// open opens a socket for the probe, bound to its source.
func (p Probe) open() (*sock, uint16, error) {
	domain, typ, proto := domainOf(p.To.Addr()), unix.SOCK_STREAM, 0
	switch p.Proto {
	case servicemodel.UDP:
		typ = unix.SOCK_DGRAM
	case servicemodel.SCTP:
		typ, proto = unix.SOCK_RAW, unix.IPPROTO_SCTP
	}

	for tries := 0; ; tries++ {
		port := p.SourcePort
		if port == 0 {
			port = p.From.NS.ports.next(p.Proto)
		}
		s, err := openSock(p.From.NS, domain, typ, proto, func(fd int) error {
			return p.setUp(fd, domain, port)
		})

		// Another socket in the namespace may use a chosen port; then the next port is tried.
		if errors.Is(err, unix.EADDRINUSE) && p.SourcePort == 0 && tries < 100 {
			continue
		}
		return s, port, err
	}
}

// setUp prepares and binds a new socket.
func (p Probe) setUp(fd, domain int, port uint16) error {
	if err := enableICMPErrors(fd, domain); err != nil {
		return os.NewSyscallError("setsockopt RECVERR", err)
	}
	bindTo := netip.AddrPortFrom(p.source(), port)
	switch p.Proto {
	case servicemodel.TCP:
		// Closing resets the connection, so that no port is held in TIME_WAIT.
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER,
			&unix.Linger{Onoff: 1}); err != nil {
			return os.NewSyscallError("setsockopt SO_LINGER", err)
		}

		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return os.NewSyscallError("setsockopt SO_REUSEADDR", err)
		}
	case servicemodel.SCTP:
		if err := filterSCTP(fd, domain, port); err != nil {
			return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", err)
		}
		bindTo = netip.AddrPortFrom(p.source(), 0) // raw sockets have no ports
	}

	return os.NewSyscallError("bind", unix.Bind(fd, sockaddr(bindTo)))
}

// dial is Send for a TCP connection, which it keeps if the outcome is Answered.
func (p Probe) dial(ctx context.Context) (*conn, Outcome) {
	s, port, err := p.open()
	if err != nil {
		return nil, Outcome{Err: fmt.Errorf("open socket: %w", err)}
	}
	o := p.sendTCP(ctx, s)
	if o.Kind != Answered {
		s.Close() //nolint:errcheck // the outcome is known
		return nil, o
	}

	return &conn{stream: s.file, local: netip.AddrPortFrom(s.localAddr(), port)}, o
}

// sendTCP connects, and reads the server's line.
func (p Probe) sendTCP(ctx context.Context, s *sock) Outcome {
	o := p.connectTCP(ctx, s)
	if o.Kind == Answered {
		o = p.greeting(ctx, s)
	}
	return o
}

// connectTCP opens the connection. Answered means that it is established.
func (p Probe) connectTCP(ctx context.Context, s *sock) Outcome {
	if err := s.connect(p.To); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return s.failure(err)
	}
	return p.await(ctx, s, s.pollWrite, func(fd int) (Outcome, bool) {
		if e := readICMPError(fd, nil); e != nil {
			return icmpOutcome(e), true
		}
		errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if errno != 0 {
			err = syscall.Errno(errno)
		}
		if err != nil {
			return failure(fd, err), true
		}
		_, err = unix.Getpeername(fd)
		return Outcome{Kind: Answered}, err == nil
	})
}

// greeting reads the server's line. No test waits for a missing greeting, so the timeout is long.
func (p Probe) greeting(ctx context.Context, s *sock) Outcome {
	p.Timeout = max(p.Timeout, 10*time.Second)
	var line []byte
	noError := func([]byte) bool { return false }
	o := p.await(ctx, s, s.pollRead, func(fd int) (Outcome, bool) {
		return readEach(fd, noError, func(b []byte, err error) (Outcome, bool) {
			switch {
			case err != nil:
				return Outcome{Err: fmt.Errorf("connected, then: %w", err)}, true
			case len(b) == 0:
				return Outcome{Err: errors.New("connected, then closed by the server")}, true
			}

			line = append(line, b...)
			head, _, whole := strings.Cut(string(line), "\n")
			return answered(head), whole
		})
	})
	if o.Kind == Dropped {
		return Outcome{Err: errors.New("connected, but not greeted")}
	}
	return o
}

// exchange connects the socket, sends one packet, and reads until an answer determines the outcome.
func (p Probe) exchange(ctx context.Context, s *sock, packet []byte, answer step) Outcome {
	to := p.To
	if p.Proto == servicemodel.SCTP {
		to = netip.AddrPortFrom(to.Addr(), 0)
	}
	if err := s.connect(to); err != nil {
		return s.failure(err)
	}
	if _, err := s.file.Write(packet); err != nil && !errors.Is(err, unix.EPERM) {
		return s.failure(err)
	}

	// EPERM means that a rule in the output hook dropped or rejected the packet. Waiting shows
	// which, as for any other packet.
	return p.await(ctx, s, s.pollRead, answer)
}

// readEach calls take with each waiting packet, or with the socket's error, until take decides or
// no packet is left. An ICMP error that accept accepts also decides: see readICMPError.
func readEach(fd int, accept func(transport []byte) bool,
	take func(b []byte, err error) (Outcome, bool)) (Outcome, bool) {
	buf := make([]byte, 512)
	for {
		if e := readICMPError(fd, accept); e != nil {
			return icmpOutcome(e), true
		}
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return Outcome{}, false
		}

		if o, decided := take(buf[:max(n, 0)], err); decided {
			return o, true
		}
	}
}

// answerUDP is the step of a UDP probe.
func answerUDP(fd int) (Outcome, bool) {
	return readEach(fd, nil, func(b []byte, err error) (Outcome, bool) {
		if err != nil {
			return failure(fd, err), true
		}
		return answered(string(b)), true
	})
}

func (p Probe) sendSCTP(ctx context.Context, s *sock, port uint16) Outcome {
	a := &association{port: port, to: p.To, tag: rand.Uint32() | 1}
	init := sctpPacket{SrcPort: port, DstPort: p.To.Port(), Chunk: sctpInit, InitTag: a.tag}
	o := p.exchange(ctx, s, init.encode(), a.answer)
	if o.Kind == Dropped && a.looped {
		o.Kind = Refused
	}
	return o
}

// await calls take each time the socket changes, until take decides or the probe's timeout has
// passed. The namespace's pulse measures the timeout.
func (p Probe) await(ctx context.Context, s *sock, poll poller, take step) Outcome {
	p.Timeout = cmp.Or(p.Timeout, defaultTimeout)

	// Most probes are decided at once and need no pulse.
	if o, decided := awaitFor(ctx, s, min(pulseInterval, p.Timeout), poll, take); decided {
		return o
	}
	pulse, err := p.From.NS.thePulse()
	if err != nil {
		return Outcome{Err: err}
	}
	pulse.join()
	defer pulse.leave()
	first, _ := pulse.count()
	last := first + int((p.Timeout+pulseInterval-1)/pulseInterval)
	giveUp := time.Now().Add(100 * p.Timeout)
	for {
		beats, err := pulse.count()
		if err != nil {
			return Outcome{Err: err}
		}
		if beats >= last {
			return silence(s, pulse, take)
		}
		if time.Now().After(giveUp) {
			o := silence(s, pulse, take)
			if o.Kind == Dropped {
				o = Outcome{Err: fmt.Errorf("no answer in %v, but the machine is too busy to tell "+
					"whether the packet was dropped", 100*p.Timeout)}
			}
			return o
		}
		patience := min(time.Duration(last-beats)*pulseInterval, time.Second)
		if o, decided := awaitFor(ctx, s, patience, poll, take); decided {
			return o
		}
	}
}

// silence calls the step once more before the probe counts as unanswered.
func silence(s *sock, pulse *pulse, take step) Outcome {
	pulse.barrier()
	o, decided := Outcome{}, false
	if err := s.control(func(fd int) { o, decided = take(fd) }); err != nil {
		return Outcome{Err: err}
	}
	if !decided {
		o = Outcome{Kind: Dropped}
	}
	return o
}

// awaitFor calls take each time the socket changes, until take decides or the time has passed.
// Errors decide, too.
func awaitFor(ctx context.Context, s *sock, patience time.Duration, poll poller, take step) (
	o Outcome, decided bool) {
	if err := s.file.SetDeadline(time.Now().Add(patience)); err != nil {
		return Outcome{Err: err}, true
	}
	stop := context.AfterFunc(ctx, func() {
		s.file.SetDeadline(time.Unix(1, 0)) //nolint:errcheck // if closed, the wait is over
	})
	defer stop()
	err := poll(func(fd int) bool {
		o, decided = take(fd)
		return decided
	})
	switch {
	case decided:
		return o, true
	case ctx.Err() != nil:
		return Outcome{Err: ctx.Err()}, true
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return Outcome{Err: err}, true
	}

	return Outcome{}, false
}

// icmpOutcome is the outcome that an ICMP error means.
func icmpOutcome(e *ICMPError) Outcome {
	if e.refuses() {
		return Outcome{Kind: Refused, ICMP: e}
	}
	return Outcome{Kind: Unreachable, ICMP: e}
}

// failure is the outcome of an error of the socket. If an ICMP error caused it, that error decides.
func failure(fd int, err error) Outcome {
	if e := readICMPError(fd, nil); e != nil {
		return icmpOutcome(e)
	}
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return Outcome{Kind: Refused}
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH),
		errors.Is(err, unix.EACCES):
		return Outcome{Kind: Unreachable, Err: err}
	}

	return Outcome{Err: err}
}

// failure calls the function failure for the socket.
func (s *sock) failure(err error) (o Outcome) {
	if ctlErr := s.control(func(fd int) { o = failure(fd, err) }); ctlErr != nil {
		return Outcome{Err: ctlErr}
	}
	return o
}

// isReset reports whether the network ended a connection with an error.
func isReset(err error) bool {
	for _, e := range []error{
		unix.ECONNRESET, unix.EPIPE, unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH,
		unix.EACCES, unix.ETIMEDOUT,
	} {
		if errors.Is(err, e) {
			return true
		}
	}

	return false
}
