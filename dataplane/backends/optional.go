package backends

import (
	"context"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Locker is a [Backend] that lets the writers of one instance take turns, within this process and
// across processes. Turns only provide fairness. Commits are correct without them, but a writer
// that reads for a long time could conflict repeatedly with a writer that commits often.
type Locker interface {
	// Lock waits for the caller's turn and returns the function that ends the turn. The backend
	// limits the wait. When the limit is reached, Lock returns without the turn, because the writer
	// that has it may be stuck. The error is the context's error, or [kernelerr.ErrClosed].
	Lock(ctx context.Context) (unlock func(), err error)
}

// Settler does the work that commits leave for later, such as removing an endpoint once it has
// drained. A [Backend] may be a Settler.
type Settler interface {
	// Settle does the work that is due, and returns the time until the next call is needed; 0 means
	// that no work is left. The engine calls it after every apply, so it must be cheap if nothing
	// is due. The engine calls it only while it knows the kernel's contents. After an error the
	// engine reads the kernel again. Work that failed remains due.
	Settle(ctx context.Context) (next time.Duration, err error)
}

// Watcher watches objects that determine a backend's kernel state and that other programs change,
// such as the addresses of the node. A [Backend] may be a Watcher. An engine calls Watch as long as
// it runs.
type Watcher interface {
	// Watch calls changed whenever another apply of the same state may have a different result. It
	// returns when ctx is done, which is not an error. It may call changed more often than
	// necessary, because changed returns at once. Other methods of the backend are called while
	// Watch runs.
	Watch(ctx context.Context, changed func()) error
}

// Program is a program that changed objects in the kernel.
type Program struct {
	// Name is the name of the thread, at most 15 bytes (comm in proc(5)).
	Name string
	// Thread is the thread's number in the initial pid namespace. For a single-threaded program, it
	// is the process ID.
	Thread uint32
}

// Blamer is a [Backend] that can find out which program changes the backend's objects. Listening
// for changes slows down every change by any program. So an engine calls Blame only while another
// program keeps undoing repairs.
type Blamer interface {
	// Blame waits until another program changes the backend's objects, and returns that program.
	// Other methods of the backend are called while it runs. When ctx ends, it returns the
	// context's error.
	Blame(ctx context.Context) (Program, error)
}

// PartReader is a [Backend] that can read the objects of a few owners in a time that does not
// depend on the parts of other owners.
type PartReader interface {
	// ObserveParts reads the parts of owners, each named once, and finds out whether other owners
	// have parts ([Observation.OnlyOwners]). If the named owners have no parts yet and want has
	// something for them, OnlyOwners may be false even if no other owner has a part. The table of
	// the observation contains the rules of the instance and all objects of the named owners. From
	// other owners, it contains the frontends with a key of want. If dataplane.Flows would need
	// them, it also contains the frontends with the protocol and port of a node port of the named
	// owners or of want. The table lacks the pools of these frontends. If it contains anything else
	// of another owner, it contains the complete parts of all owners. Drift is limited to the named
	// owners.
	//
	// If another version of kernlb made the instance ([Observation.OtherLayout]), the table
	// contains the frontends of all owners, without their pools, and no rules. Commit then accepts
	// two kinds of change sets. The first removes the parts of all named owners. The second
	// replaces the instance with a whole table; it requires that no other owner has a part. If the
	// backend cannot tell which frontends exist, ObserveParts fails with [ErrOtherLayout].
	//
	// Until the next observation, Plan and Commit accept change sets for these owners and for the
	// rules. Settle does the work that the commit left for later. When an owner removes an address
	// that other owners also need, Commit keeps it in the kernel.
	ObserveParts(ctx context.Context, owners []string, want *servicemodel.Table) (*Observation,
		error)
	// Owners lists the owners of frontends in any order, possibly more than once.
	Owners(ctx context.Context) ([]string, error)
}

// OmitsPools is a [Backend] for a kernel mechanism that cannot store some pools, so a reading may
// lack them. The engine then reads the kernel before it plans changes that will be stored, because
// stored changes must start from contents that any process can read.
type OmitsPools interface {
	// OmitsPools is only a marker, and does nothing.
	OmitsPools()
}
