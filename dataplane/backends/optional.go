package backends

import (
	"context"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Locker is a [Backend] whose writers of one instance can take turns, in this process and in other
// processes. Turns only ensure fairness. Commits are correct without turns, but a writer with long
// readings could conflict again and again with a writer that commits often.
type Locker interface {
	// Lock waits for the caller's turn and returns the function that ends the turn. The backend
	// bounds the wait. After that time Lock returns without the turn, because the writer that holds
	// it may be stuck. It returns the context's error, or [kernelerr.ErrClosed].
	Lock(ctx context.Context) (unlock func(), err error)
}

// Settler does the work that commits leave for later, such as removing an endpoint once it has
// drained. A [Backend] may be a Settler.
type Settler interface {
	// Settle does the work that is due, and returns the time until the next call; 0 means that no
	// work is left. The engine calls it after each apply, so it must be cheap if nothing is due.
	// The engine calls it only while it knows the kernel's contents. After an error the engine
	// reads the kernel again. Work that failed stays due.
	Settle(ctx context.Context) (next time.Duration, err error)
}

// Watcher follows objects that a backend's kernel state depends on and that other programs change,
// such as the addresses of the node. A [Backend] may be a Watcher. An engine watches as long as it
// runs.
type Watcher interface {
	// Watch calls changed whenever another apply of the same state may have a different result. It
	// returns when ctx is done, which is not an error. It may call changed more often than
	// necessary; changed returns at once. Watch runs while other methods of the backend are called.
	Watch(ctx context.Context, changed func()) error
}

// Program is a program that changed the kernel's state.
type Program struct {
	// Name is the name of the thread, at most 15 bytes (comm in proc(5)).
	Name string
	// Thread is the thread's number in the initial pid namespace. For a program with one thread it
	// is the process number.
	Thread uint32
}

// Blamer is a [Backend] that can find out which program changes the backend's objects. Listening
// for changes slows down every change by any program. So an engine asks only while another program
// undoes repairs again and again.
type Blamer interface {
	// Blame waits until another program changes the backend's objects, and returns that program.
	// It runs while other methods of the backend are called. When ctx ends, it returns the
	// context's error.
	Blame(ctx context.Context) (Program, error)
}

// PartReader is a [Backend] that can read the objects of a few owners, in time that does not depend
// on the parts of other owners.
type PartReader interface {
	// ObserveParts reads the parts of owners, each named once, and finds out whether other owners
	// hold anything ([Observation.OnlyOwners]). If the named owners hold nothing yet and want has
	// something for them, OnlyOwners may be false in any case. The table of the observation
	// contains the rules of the instance and all objects of the named owners. From other owners it
	// contains the frontends with a key of want and, if dataplane.Flows would need them, the
	// frontends with the protocol and port of a node port of the named owners or of want, all
	// without their pools. If it contains more of another owner's part, it contains the whole parts
	// of all other owners. Drift concerns only the named owners.
	//
	// If another version of kernlb made the instance ([Observation.OtherLayout]), the table
	// contains the frontends of all owners, without their pools, and no rules. Commit then accepts
	// two kinds of change sets. The first removes everything that the owners hold. The second
	// replaces the instance with a whole table; it requires that no other owner holds anything. If
	// the backend cannot tell which frontends exist, the error is [ErrOtherLayout].
	//
	// Until the next observation, Plan and Commit accept change sets for these owners and for the
	// rules. Settle does the work that the commit left. When an owner removes an address, Commit
	// keeps it in the kernel if other owners also need it.
	ObserveParts(ctx context.Context, owners []string, want *servicemodel.Table) (*Observation,
		error)
	// Owners lists the owners of frontends in any order, possibly with repetitions.
	Owners(ctx context.Context) ([]string, error)
}

// OmitsPools is a [Backend] whose kernel cannot store some pools, so a reading may lack them. The
// engine then reads the kernel to plan changes that will be stored, because stored changes must
// begin from contents that any process can read.
type OmitsPools interface {
	// OmitsPools marks the backend, and does nothing.
	OmitsPools()
}
