package backends

import (
	"context"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Locker is a [Backend] whose writers of one instance can take turns, in this process and in other
// processes. Turns are only for fairness. Commits are right without them, but without them a writer
// with long readings could conflict again and again with one that writes often.
type Locker interface {
	// Lock waits for the caller's turn and returns the function that ends the turn. The backend
	// bounds the wait. After that time Lock returns without the turn, because the writer that holds
	// it may be stuck. It returns the context's error, or [kernelerr.ErrClosed].
	Lock(ctx context.Context) (unlock func(), err error)
}

// Settler does the work that commits leave for later, such as removing an endpoint once it has
// drained. A [Backend] may be one.
type Settler interface {
	// Settle does the work that is due, and returns the time until the next call; 0 means that no
	// work is left. The engine calls it after each apply, so it must be cheap if nothing is due. A
	// backend's Settle is called only while the engine knows what the kernel holds. After an error
	// the engine reads the kernel again. Work that failed stays due.
	Settle(ctx context.Context) (next time.Duration, err error)
}

// Watcher follows objects that a backend's kernel state depends on and that others change, such as
// the addresses of the node. A [Backend] may be one. An engine watches as long as it runs.
type Watcher interface {
	// Watch calls changed whenever another apply of the same state may have another result. It
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
// for that slows down every change by any program. So an engine asks only while another program
// undoes repairs again and again.
type Blamer interface {
	// Blame waits until another program changes the backend's objects, and returns that program.
	// It runs while other methods of the backend are called. When ctx ends, it returns the
	// context's error.
	Blame(ctx context.Context) (Program, error)
}

// PartReader is a [Backend] that can read the objects of a few owners, in time that does not depend
// on the parts of others.
type PartReader interface {
	// ObserveParts reads the parts of owners, each named once, and finds out whether others hold
	// anything ([Observation.OnlyOwners]). If owners have nothing and are to have something,
	// OnlyOwners may be false in any case. The table of the observation has the rules of the
	// instance and everything that the owners hold. From other owners it has, without their pools,
	// the frontends with a key of want, and the frontends with the protocol and port of a node port
	// of the owners or of want, if dataplane.Flows would need them. It may have more of the others'
	// parts, but then all of them. Drift concerns only the owners.
	//
	// If another version of kernlb made the instance ([Observation.OtherLayout]), the table has the
	// frontends of all owners, without their pools, and no rules. Commit then accepts two kinds of
	// change sets. The first removes everything that the owners hold. The second leads to a whole
	// table and replaces the instance; it requires that no other owner holds anything. If the
	// backend cannot tell which frontends there are, the error is [ErrOtherLayout].
	//
	// Until the next observation, Plan and Commit accept change sets for these owners and for the
	// rules. Settle does the work that the commit left. When an owner's address goes, Commit keeps
	// it in the kernel if others also need it.
	ObserveParts(ctx context.Context, owners []string, want *servicemodel.Table) (*Observation,
		error)
	// Owners lists the owners of frontends in any order, possibly with repetitions.
	Owners(ctx context.Context) ([]string, error)
}

// OmitsPools is a [Backend] whose kernel may have no place for a pool, so a reading may lack it. A
// plan of changes to store then reads the kernel, because such changes must begin from what any
// process can read.
type OmitsPools interface {
	// OmitsPools does nothing.
	OmitsPools()
}
