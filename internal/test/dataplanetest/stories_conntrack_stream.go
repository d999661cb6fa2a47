package dataplanetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// streamInterval is the minimum time between two datagrams of a stream.
	streamInterval = 2 * time.Millisecond
	// streamPatience is the time that a stream waits for an answer before it sends the next
	// datagram.
	streamPatience = 50 * time.Millisecond
	// streamSome is the number of datagrams that shows their fate reliably. streamBusy is the time
	// that a busy machine may need for them.
	streamSome = 4
	streamBusy = time.Minute
)

// stream is a UDP client that sends continuously from one port, so that all its datagrams are one
// flow. It sends the next datagram after the answer to the last datagram, or when the answer is
// late. So only one datagram is in flight.
type stream struct {
	name     string
	conn     *net.UDPConn
	work     sync.WaitGroup
	patience time.Duration

	stop func() // ends the sending: after it returns, nothing more is sent

	mu      sync.Mutex
	waiting bool // for an answer
	last    time.Time
	count   tally // without the lost ones
}

// stream opens a stream. It sends nothing yet.
func (w *world) stream(t *testing.T, from string, port uint16, to netip.AddrPort) *stream {
	t.Helper()
	s := &stream{name: fmt.Sprintf("%s to %s", from, to), patience: streamPatience, stop: func() {}}
	s.forget()
	host := w.hosts[from]
	local := netip.AddrPortFrom(host.Addr(to.Addr()), port)
	err := host.NS.Do(func() (err error) {
		s.conn, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(local),
			net.UDPAddrFromAddrPort(to))
		return err
	})
	if err != nil {
		t.Fatalf("open a stream from %s: %v", s.name, err)
	}
	s.work.Go(s.hear)
	t.Cleanup(func() {
		s.stop()
		s.conn.Close() //nolint:errcheck // the stream is over
		s.work.Wait()
	})

	return s
}

// hear counts answers.
func (s *stream) hear() {
	b := make([]byte, 256)
	for {
		n, err := s.conn.Read(b)
		s.mu.Lock()
		s.waiting = false
		switch {
		case err == nil:
			server, _, _ := strings.Cut(string(b[:n]), " ")
			s.count.answers[server]++
		case errors.Is(err, syscall.ECONNREFUSED):
			s.count.refused++
		case errors.Is(err, net.ErrClosed):
			s.mu.Unlock()
			return
		default: // unreachable for a moment, perhaps
			time.Sleep(time.Millisecond)
		}

		s.mu.Unlock()
	}
}

// start begins to send.
func (s *stream) start() {
	ctx, cancel := context.WithCancel(context.Background())
	var sending sync.WaitGroup
	sending.Go(func() {
		tick := time.NewTicker(streamInterval)
		defer tick.Stop()
		for ctx.Err() == nil {
			<-tick.C
			s.send()
		}
	})

	s.stop = func() {
		cancel()
		sending.Wait()
	}
}

func (s *stream) send() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting && time.Since(s.last) < s.patience {
		return
	}

	// If the kernel has noted an error of an earlier datagram, Write returns the error and does not
	// send this datagram.
	if _, err := s.conn.Write([]byte("stream\n")); err == nil {
		s.count.sent++
		s.waiting, s.last = true, time.Now()
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		s.count.refused++
	}
}

// wait waits until every datagram was answered or refused, or nothing came for two seconds.
func (s *stream) wait() {
	y := s.tally()
	for quiet := 0; y.lost > y.refused && quiet < 200; quiet++ {
		time.Sleep(10 * time.Millisecond)
		now := s.tally()
		if now.lost != y.lost || now.refused != y.refused {
			quiet = 0
		}
		y = now
	}
}

// tally counts the fates of a stream's datagrams.
type tally struct {
	sent, lost int
	refused    int // as the kernel reported
	answers    map[string]int
}

func (s *stream) tally() tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	y := s.count
	y.lost, y.answers = y.sent, maps.Clone(y.answers)
	for _, n := range y.answers {
		y.lost -= n
	}
	return y
}

// forget resets the counts.
func (s *stream) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count, s.waiting = tally{answers: map[string]int{}}, false
}

func (y tally) String() string {
	return fmt.Sprintf("%d sent, %d lost, %d refused, answered by %v", y.sent, y.lost, y.refused,
		y.answers)
}

// streams are several streams at once.
type streams []*stream

func (l streams) start() {
	for _, s := range l {
		s.start()
	}
}

func (l streams) stop() {
	for _, s := range l {
		s.stop()
	}
	var waits sync.WaitGroup
	for _, s := range l {
		waits.Go(s.wait)
	}
	waits.Wait()
}

// send lets all streams send for a moment, and longer until each has sent streamSome datagrams. It
// returns the fates of the datagrams.
func (l streams) send(moment time.Duration) []tally {
	l.forget()
	l.start()
	time.Sleep(moment)
	l.each(streamSome)
	l.stop()
	defer l.forget()
	return l.tallies()
}

func (l streams) forget() {
	for _, s := range l {
		s.forget()
	}
}

// each waits until each stream has sent, or been refused, this number of times.
func (l streams) each(often int) {
	few := func(s *stream) bool {
		y := s.tally()
		return y.sent+y.refused < often
	}

	for end := time.Now().Add(streamBusy); slices.ContainsFunc(l, few) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
}

func (l streams) tallies() []tally {
	y := make([]tally, len(l))
	for i, s := range l {
		y[i] = s.tally()
	}
	return y
}

// requireAll lets the streams send for a moment, and requires that every datagram is answered by
// one of the servers.
func (l streams) requireAll(t *testing.T, servers ...string) {
	t.Helper()
	for i, y := range l.send(150 * time.Millisecond) {
		right := 0
		for _, name := range servers {
			right += y.answers[name]
		}
		if y.sent == 0 || right < y.sent {
			t.Errorf("%s, wanted answers of %v only: %s", l[i].name, servers, y)
		}
	}
}

// requireRefused lets the streams send for a moment, and requires that no server answers.
func (l streams) requireRefused(t *testing.T, when string) {
	t.Helper()
	for i, y := range l.send(100 * time.Millisecond) {
		if y.refused == 0 || len(y.answers) > 0 {
			t.Errorf("%s: wanted refusals %s, got %s", l[i].name, when, y)
		}
	}
}
