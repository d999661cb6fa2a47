package dataplane

import (
	"context"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Backend keeps the services of one instance in one kernel mechanism of one network namespace. It
// translates; everything that can be decided without the kernel was decided in the table.
//
// An [Engine] calls the methods of a Backend one at a time.
type Backend interface {
	// Name is the backend's name: "nftables", "iptables" or "ipvs".
	Name() string

	// Check reports what of the change set this backend cannot express, or cannot write since
	// something foreign is in the way, as *[UnsupportedError] and *[CollisionError] values joined,
	// each with the service that it is about. It looks at what changes only, may know what was
	// observed, and touches nothing. What it does not report, Plan and Commit do not refuse.
	Check(c *servicemodel.ChangeSet) error

	// Observe reads what the kernel holds for this instance. want is a table that the caller
	// expects there or is about to make of it, nil if there is none: a hint with which a backend
	// may read faster, by asking for what is in it. What is in the observation does not depend on
	// it, except that an observation with a hint may be [Observation.Unread].
	//
	// An error that wraps [ErrConflict] says that others were in the way. What was known before is
	// then still what Commit begins from, unless Integrity says Broken.
	Observe(ctx context.Context, want *servicemodel.Table) (*Observation, error)

	// Integrity reports whether the kernel still holds what the last Observe or Commit left there,
	// in time that does not grow with the number of services. A neighbour that commits, and changes
	// nothing of ours, never causes Broken, nor an error.
	Integrity(ctx context.Context) (Integrity, error)

	// Plan renders what Commit would send, without sending it.
	Plan(c *servicemodel.ChangeSet) (Plan, error)

	// Commit writes the change set, whose Old equals the table of the last observation or commit,
	// and repairs what the last observation reported as drift. With one kernel transaction either
	// all of it takes effect or none; a backend that needs several says so in its documentation.
	// Commit returns once the kernel has the change set, and fails only if the kernel may not have
	// it: later work that can fail, such as forgetting clients, is left to [Settler].
	//
	// An error that wraps [ErrConflict] says that another writer of the instance, or somebody by
	// hand, changed what the change set begins from, or that something foreign appeared since Check
	// where something of the change set must be. A neighbour's commit alone is no conflict. After
	// any error the kernel must be observed again before the next Commit.
	Commit(ctx context.Context, c *servicemodel.ChangeSet) (Stats, error)

	// Cleanup removes every trace of the instance from the kernel. Nothing there is not an error.
	Cleanup(ctx context.Context) (Stats, error)

	// Close releases sockets. It leaves the kernel as it is.
	Close() error
}

// Observation is what a backend found in the kernel.
type Observation struct {
	// Table holds the objects that are whole. An instance that was never applied has an empty
	// table.
	Table *servicemodel.Table `json:"table"`
	// Drift describes, one line each, what is there but does not belong, or is there in part only.
	// The next commit puts it right, also if its change set is empty.
	Drift []string `json:"drift,omitempty"`
	// Unread says that the kernel holds more, which belongs to nothing in Table or in want. Only an
	// observation without a hint finds it.
	Unread bool `json:"unread,omitzero"`
	// OtherLayout says that at least part of the drift was made by another version of kernlb, and
	// not read: nothing tells what services it stands for.
	OtherLayout bool `json:"otherLayout,omitzero"`
}

// Locker is a [Backend] whose writers of one instance can take turns, in this process and in
// others. That is a matter of fairness only: commits are right without it, but a writer that reads
// for long would conflict again and again with one that writes often.
type Locker interface {
	// Lock waits for the caller's turn, at most for a time that the backend bounds, and returns the
	// function that ends the turn. After that time it returns without the turn, since the writer
	// that has it may be stuck. The error is that of the context.
	Lock(ctx context.Context) (unlock func(), err error)
}

// Integrity says what became of the kernel's state since it was last read or written, as far as
// that shows without reading all of it.
type Integrity int

const (
	// Intact means that nothing of ours was changed by anybody but this backend.
	Intact Integrity = iota
	// Touched means that somebody committed, that no other writer of the instance did, and that our
	// skeleton is in place. An element may have been changed by hand. The engine remembers that,
	// and reads when its ration allows: a backend says it once.
	Touched
	// Broken means that at least part of ours is gone or replaced, or that another writer of the
	// instance committed. It is reason to read at once.
	Broken
)

// Plan is what a commit would send.
type Plan interface {
	// String is the plan in the language of the reference tool (nft, iptables-restore, ipvsadm).
	fmt.Stringer
	// Stats counts the messages and bytes of the plan. Duration is zero.
	Stats() Stats
}

// Stats is what a commit cost.
type Stats struct {
	Messages int // netlink messages sent, without batch begin and end
	Bytes    int // bytes sent
	// set elements, rules or destinations that were added, changed or deleted one by one
	Elements int
	Duration time.Duration // from the first byte encoded to the kernel's last answer
}

// String returns "4 kernel messages, 628 bytes, 85µs".
func (s Stats) String() string {
	return fmt.Sprintf("%d kernel messages, %d bytes, %v", s.Messages, s.Bytes,
		s.Duration.Round(time.Microsecond))
}

// Plus returns what two commits cost in all. The duration is that of s.
func (s Stats) Plus(o Stats) Stats {
	s.Messages += o.Messages
	s.Bytes += o.Bytes
	s.Elements += o.Elements
	return s
}
