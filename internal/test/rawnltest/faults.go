package rawnltest

import (
	"errors"
	"slices"
	"sync"
	"syscall"
)

// A Fault is one way in which the conversation with the kernel goes wrong.
type Fault struct {
	Name string
	// Errno is the error that the kernel or the socket returns; 0 for faults that damage an answer.
	Errno syscall.Errno
	// Dump limits the fault to the answers of dumps. An interrupted dump may still be valid: see
	// Conn.DumpOwn of package rawnl.
	Dump bool

	send func(w *wrapped, p []byte) error // instead of a send
	// fails makes a receive fail with Errno. The queue keeps its content.
	fails bool
	// damage damages the received answer. Then the receive fails with Errno, unless Errno is 0.
	damage func(p []byte, sizes []int)
	call   func(do func() error) error // instead of a whole request
}

// Explains reports whether an error names the fault: it is the fault's errno, or one of the others,
// which mean the same.
func (f Fault) Explains(err error, others ...error) bool {
	return f.Errno != 0 && errors.Is(err, f.Errno) ||
		slices.ContainsFunc(others, func(o error) bool { return errors.Is(err, o) })
}

// Stall is a receive queue that is empty too early, because the kernel had no memory for the next
// answer.
var Stall = Fault{Name: "the queue is empty too early", Errno: syscall.EAGAIN, fails: true}

// Torn is an interrupted dump that lacks most of its objects.
var Torn = Fault{Name: "a dump is torn", damage: tear, Dump: true}

// named is an errno with its name.
type named struct {
	name string
	syscall.Errno
}

// The errnos that a kernel returns under pressure.
var pressure = []named{{"ENOBUFS", syscall.ENOBUFS}, {"EINTR", syscall.EINTR},
	{"EAGAIN", syscall.EAGAIN}, {"EBUSY", syscall.EBUSY}, {"ENOMEM", syscall.ENOMEM},
	{"ENOSPC", syscall.ENOSPC}}

// Calls returns the faults of requests that do not use the sockets of package rawnl. Such a request
// must pass [Faults.Call]. interrupted is the error of an interrupted dump.
func Calls(interrupted error) (all []Fault) {
	// instead makes a request, and returns err instead of the request's result.
	instead := func(err error) func(func() error) error {
		return func(do func() error) error {
			_ = do()
			return err
		}
	}

	for _, e := range append(pressure, named{"EPERM", syscall.EPERM}) {
		all = append(all,
			Fault{Name: "a request is answered with " + e.name, Errno: e.Errno,
				call: func(func() error) error { return e.Errno }},
			Fault{Name: "a request succeeds, and the socket says " + e.name, Errno: e.Errno,
				call: instead(e.Errno)})
	}

	return append(all,
		Fault{Name: "somebody else has just done the same", call: func(do func() error) error {
			_ = do()
			return do()
		}},
		Fault{Name: "a dump is interrupted", Dump: true, call: instead(interrupted)})
}

// Before returns a fault that runs a function before each request goes out.
func Before(name string, happen func()) Fault {
	return Fault{Name: name, call: func(do func() error) error {
		happen()
		return do()
	}}
}

// All returns all faults of sockets that a program must survive.
func All() (all []Fault) {
	for _, e := range pressure {
		all = append(all,
			Fault{Name: "sending fails with " + e.name, Errno: e.Errno,
				send: func(*wrapped, []byte) error { return e.Errno }},
			Fault{Name: "the kernel answers " + e.name, Errno: e.Errno,
				send: func(w *wrapped, p []byte) error { return w.refuse(p, e.Errno) }})

		// an answer is lost with ENOBUFS; EAGAIN is Stall
		if e.Errno != syscall.ENOBUFS && e.Errno != syscall.EAGAIN {
			all = append(all, Fault{Name: "receiving fails with " + e.name, Errno: e.Errno,
				fails: true})
		}
	}

	return append(all, Stall,
		Fault{Name: "a request is refused, and the answer lost",
			send: func(*wrapped, []byte) error { return nil }},
		Fault{Name: "an answer is lost", Errno: syscall.ENOBUFS, damage: func([]byte, []int) {}},
		// inside a message, because an answer that is cut between two messages would look complete
		Fault{Name: "half of an answer is read",
			damage: func(_ []byte, sizes []int) { sizes[0] = max(sizes[0]/2-5, 1) }},
		Fault{Name: "less than a header is read",
			damage: func(_ []byte, sizes []int) { sizes[0] = min(sizes[0], headerLen-1) }},
		Fault{Name: "an answer is too long", // MSG_TRUNC
			damage: func(p []byte, sizes []int) { sizes[0] = len(p)/len(sizes) + 1 }},
		Fault{Name: "a dump is interrupted", damage: interrupt, Dump: true})
}

// Faults makes one call of the wrapped sockets go wrong, and counts their traffic. It may be used
// by many goroutines.
type Faults struct {
	mu    sync.Mutex
	fault Fault
	n     int // the call that goes wrong; 0: each, -1: none
	calls int // that the fault could have hit
	hits  int
	count Count
}

// Count is the traffic of the sockets.
type Count struct {
	Sends, Receives int // calls that succeeded
	Sent, Received  int // bytes
}

// NewFaults returns a Faults that has no effect until Arm.
func NewFaults() *Faults { return &Faults{n: -1} }

// Arm makes one call go wrong: the n-th from now on that the fault can hit, counted from 1. If n is
// 0, every such call goes wrong.
func (f *Faults) Arm(fault Fault, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault, f.n, f.calls, f.hits = fault, n, 0, 0
}

// Disarm ends the fault. It returns the number of calls that went wrong since Arm.
func (f *Faults) Disarm() (hits int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n = -1
	return f.hits
}

// Count returns the traffic since the last Count.
func (f *Faults) Count() Count {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.count
	f.count = Count{}
	return c
}

// add adds to the traffic.
func (f *Faults) add(c Count) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count.Sends, f.count.Receives = f.count.Sends+c.Sends, f.count.Receives+c.Receives
	f.count.Sent, f.count.Received = f.count.Sent+c.Sent, f.count.Received+c.Received
}

// hit returns the fault that this call must have, if any.
func (f *Faults) hit(fits func(Fault) bool) (Fault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n < 0 || !fits(f.fault) {
		return Fault{}, false
	}
	f.calls++
	if f.n != 0 && f.calls != f.n {
		return Fault{}, false
	}
	f.hits++
	return f.fault, true
}

// Call makes a request with do, unless it goes wrong. dump says that the request asks for a list.
func (f *Faults) Call(dump bool, do func() error) error {
	fault, ok := f.hit(func(f Fault) bool { return f.call != nil && (dump || !f.Dump) })
	if !ok {
		return do()
	}
	return fault.call(do)
}

// Wrap returns a socket whose calls can go wrong.
func (f *Faults) Wrap(s Socket) Socket { return &wrapped{Socket: s, faults: f} }

// wrapped is a socket whose calls can go wrong.
type wrapped struct {
	Socket
	faults  *Faults
	answers [][]byte // instead of the kernel's answers
}

// Send sends, unless it goes wrong.
func (w *wrapped) Send(p []byte) error {
	if fault, ok := w.faults.hit(func(f Fault) bool { return f.send != nil }); ok {
		return fault.send(w, p)
	}
	err := w.Socket.Send(p)
	if err == nil {
		w.faults.add(Count{Sends: 1, Sent: len(p)})
	}
	return err
}

// Receive receives, unless it goes wrong.
func (w *wrapped) Receive(p []byte, sizes []int) (int, error) {
	if len(w.answers) > 0 {
		sizes[0] = copy(p, w.answers[0])
		w.answers = w.answers[1:]
		return 1, nil
	}

	fault, ok := w.faults.hit(func(f Fault) bool { return !f.Dump && (f.fails || f.damage != nil) })
	if ok && fault.fails {
		return 0, fault.Errno
	}
	n, err := w.Socket.Receive(p, sizes)
	if err != nil {
		return n, err
	}
	received := 0
	for _, size := range sizes[:n] {
		received += size
	}
	w.faults.add(Count{Receives: 1, Received: received})
	if partOfDump := native.Uint16(p[6:])&flagMulti != 0; partOfDump && len(sizes) == 1 && !ok {
		fault, ok = w.faults.hit(func(f Fault) bool { return f.Dump })
	}
	if !ok {
		return n, nil
	}
	if fault.damage(p, sizes); fault.Errno != 0 {
		return 0, fault.Errno
	}
	return n, nil
}

// refuse refuses the request as the kernel does. It refuses each message. In a transaction it
// refuses the first, and the kernel undoes all of it.
func (w *wrapped) refuse(p []byte, errno syscall.Errno) error {
	request, err := Split(p)
	if err != nil {
		return err
	}
	const batchBegin = 16 // NFNL_MSG_BATCH_BEGIN
	if request[0].Type == batchBegin {
		request = request[1:2]
	}
	for _, m := range request {
		w.answers = append(w.answers, Error(m, errno, "", 0))
	}
	return nil
}

// tear marks the received part of a dump as interrupted, and removes all objects except the first.
func tear(p []byte, sizes []int) {
	const noop = 1 // NLMSG_NOOP
	for at, first := 0, true; at+headerLen <= sizes[0]; first = false {
		if native.Uint16(p[at+4:]) != typeDone && !first {
			native.PutUint16(p[at+4:], noop)
		}
		at += (int(native.Uint32(p[at:])) + 3) &^ 3
	}

	interrupt(p, sizes)
}

// interrupt marks the received part of a dump as interrupted.
func interrupt(p []byte, _ []int) {
	const flagIntr = 0x10 // NLM_F_DUMP_INTR
	native.PutUint16(p[6:], native.Uint16(p[6:])|flagIntr)
}
