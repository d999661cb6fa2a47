package netnstest

import (
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pulseInterval is the time from one beat to the next.
const pulseInterval = 20 * time.Millisecond

// pulse measures the time in which this process could work. At each interval it sends a byte to a
// goroutine and back, through the runtime's poller like servers and probes, and counts a beat if
// the round trip was quick. If the round trip was slow, servers were also slow, because they run in
// this process.
type pulse struct {
	near, far *os.File
	work      sync.WaitGroup

	barriers    sync.Mutex
	lastBarrier time.Time // start of the last barrier

	mu      sync.Mutex
	waiters int // the pulse beats while this is positive
	running bool
	beats   int
	err     error // the pulse cannot beat any more
}

// newPulse returns a pulse that does not beat yet.
func newPulse() (*pulse, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
		0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	p := &pulse{near: os.NewFile(uintptr(fds[0]), "pulse"), far: os.NewFile(uintptr(fds[1]),
		"pulse")}
	p.work.Go(func() {
		b := make([]byte, 1)
		for {
			if _, err := p.far.Read(b); err != nil {
				return
			}
			if _, err := p.far.Write(b); err != nil {
				return
			}
		}
	})

	return p, nil
}

// Close ends the pulse.
func (p *pulse) Close() error {
	err := p.near.Close()
	p.far.Close() //nolint:errcheck // nothing is buffered
	p.work.Wait()
	return err
}

// join makes the pulse beat until leave.
func (p *pulse) join() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiters++
	if !p.running {
		p.running = true
		p.work.Go(p.run)
	}
}

func (p *pulse) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiters--
}

// count returns the number of beats so far, or the error that stopped the pulse.
func (p *pulse) count() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beats, p.err
}

// run beats as long as there are waiters.
func (p *pulse) run() {
	for {
		start := time.Now()
		time.Sleep(pulseInterval)
		err := p.roundTrip()
		quick := time.Since(start) < pulseInterval*3/2
		p.mu.Lock()
		if quick {
			p.beats++
		}
		p.err = err
		p.running = err == nil && p.waiters > 0
		goOn := p.running
		p.mu.Unlock()
		if !goOn {
			return
		}
	}
}

// roundTrip sends a byte to the other goroutine and back.
func (p *pulse) roundTrip() error {
	b := make([]byte, 1)
	if _, err := p.near.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(p.near, b)
	return err
}

// barrier waits until every processor has finished its work in the kernel. A packet stays on the
// processor that sent it until that processor has time, and a processor of a virtual machine may be
// paused while other processors run.
func (p *pulse) barrier() {
	asked := time.Now()
	p.barriers.Lock()
	defer p.barriers.Unlock()
	if p.lastBarrier.After(asked) {
		return // another caller's barrier began later, and has ended
	}
	p.lastBarrier = time.Now()

	// A grace period of RCU (membarrier(2)). Without this system call, barrier does nothing.
	const membarrierCmdGlobal = 1
	unix.Syscall(unix.SYS_MEMBARRIER, membarrierCmdGlobal, 0, 0) //nolint:errcheck // see above
}

// thePulse returns the namespace's pulse, which the first call creates.
func (ns *NS) thePulse() (*pulse, error) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.owned == nil {
		return nil, errClosed
	}
	if ns.pulse == nil {
		p, err := newPulse()
		if err != nil {
			return nil, err
		}
		ns.pulse = p
		ns.owned[p] = struct{}{}
	}

	return ns.pulse, nil
}
