package backends

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Backend keeps the services of one instance in one kernel mechanism, such as nf_tables, in one
// network namespace. A backend only translates: the table already contains all decisions that can
// be made without the kernel.
//
// An engine calls the methods of a Backend one at a time, except the methods of [Watcher] and
// [Blamer].
//
// A Backend may implement further interfaces, which an engine detects and uses. [Settler] does work
// that commits leave for later. [Locker] lets the writers of an instance take turns. [Watcher]
// watches the objects that services depend on. [Blamer] names programs that undo repairs.
// [PartReader] reads the part of one owner. [OmitsPools] says that a reading may be incomplete: it
// may lack pools.
//
// A Backend that wraps an inner Backend needs a method Unwrap() Backend. The method returns the
// inner Backend, or nil to hide its interfaces. An engine does not accept a struct with a Backend
// in a field and without this method. A struct that embeds a concrete type instead of an interface
// has all methods of that type anyway.
type Backend interface {
	// Name is the backend's name: "nftables", "iptables", "ipvs", "memory", or the name of another
	// module's backend.
	Name() string

	// Check reports the changes that this backend cannot express, or that collide with foreign
	// objects. It joins an *[UnsupportedError] or *[CollisionError] for each problem, with its
	// service. Check looks only at the changes. It may use the last observation, and changes
	// nothing. Plan and Commit must accept everything that Check accepted.
	Check(c *servicemodel.ChangeSet) error

	// Observe reads the kernel's objects of this instance. want is a hint, or nil: a table that the
	// caller expects in the kernel or will write. With a hint, a backend may read faster, by
	// requesting only the objects of want. The hint does not change the result, except that an
	// observation with a hint may be [Observation.Partial]. The observation lacks pools that the
	// kernel currently cannot store, but has the frontends that balance over them. The engine then
	// assumes that these pools are as desired.
	//
	// An error that wraps [kernelerr.ErrConflict] says that other writers interrupted the reading.
	// Commit may then still start from the previous observation, unless Integrity returns Broken.
	Observe(ctx context.Context, want *servicemodel.Table) (*Observation, error)

	// Integrity reports whether the contents of the last Observe or Commit are still in the kernel.
	// Its time does not grow with the number of services. If another program commits without
	// changing our objects, Integrity returns neither Broken nor an error.
	Integrity(ctx context.Context) (Integrity, error)

	// Plan renders the messages that Commit would send, without sending them.
	Plan(c *servicemodel.ChangeSet) (Plan, error)

	// Commit writes the change set, and repairs the drift of the last observation. The change set's
	// Old must equal the table of the last observation or commit. Commit uses one kernel
	// transaction: either all of it takes effect or none. A backend that needs several transactions
	// documents that. A change set whose new table is empty and without rules removes the instance.
	// Commit returns once the change set is in the kernel. It returns an error only if the change
	// set may be missing in the kernel. Later work that can fail, such as forgetting clients,
	// belongs to [Settler].
	//
	// An error wraps [kernelerr.ErrConflict] for one of two reasons. Either another writer of the
	// instance, or a person, changed the contents from which the change set starts. Or a foreign
	// object that collides with one of our objects has appeared since Check. A commit by another
	// program is not a conflict in itself. After any error, call Observe before the next Commit.
	Commit(ctx context.Context, c *servicemodel.ChangeSet) (Stats, error)

	// Cleanup removes every trace of the instance from the kernel. A missing instance is not an
	// error.
	Cleanup(ctx context.Context) (Stats, error)

	// Close releases sockets. It does not change the kernel. Later calls fail with
	// [kernelerr.ErrClosed], except Close itself, which returns nil.
	Close() error
}

// Observation is the result of reading an instance from the kernel.
type Observation struct {
	// Table contains the objects that are complete. It is empty if the kernel has no instance.
	Table *servicemodel.Table `json:"table"`
	// Drift describes, one line each, objects that do not belong in the instance or are incomplete.
	// The next commit repairs them, even if its change set is empty.
	Drift []string `json:"drift,omitempty"`
	// Partial says that the kernel also has objects of the instance that are neither in Table nor
	// in want. Only an observation without a hint finds them.
	Partial bool `json:"partial,omitzero"`
	// OtherLayout says that another version of kernlb made at least part of the drift. The backend
	// did not read that part, so it does not know its services.
	OtherLayout bool `json:"otherLayout,omitzero"`
	// OnlyOwners says that only the owners passed to [PartReader.ObserveParts] have parts.
	OnlyOwners bool `json:"onlyOwners,omitzero"`
}

// Integrity says whether our objects in the kernel have changed since the last reading or commit,
// as far as a cheap check can tell.
type Integrity int

const (
	// Intact means that only this backend has changed our objects.
	Intact Integrity = iota
	// Touched means that a program other than the instance's writers committed, but that our tables
	// and chains are in place. That program may have changed elements. The engine remembers this,
	// and reads when its limit on such readings allows. A backend may report Touched once or
	// repeatedly.
	Touched
	// Broken means that some of our objects are missing or replaced, or that another writer of the
	// instance committed. The engine reads at once.
	Broken
)

// Plan has the messages of a commit that was not sent.
type Plan interface {
	// String returns the plan in the language of the reference tool (nft, iptables-restore,
	// ipvsadm).
	fmt.Stringer
	// Stats counts the messages and bytes of the plan. Duration is zero.
	Stats() Stats
}

// Stats is the cost of a commit.
type Stats struct {
	Messages int `json:"messages"` // netlink messages sent, not counting batch begin and end
	Bytes    int `json:"bytes"`    // bytes sent
	// set elements, rules or destinations that were added, changed or deleted individually
	Elements int `json:"elements"`
	// from the first byte encoded to the kernel's last answer
	Duration time.Duration `json:"-"`
}

// String returns "4 kernel messages, 628 bytes, 85µs".
func (s Stats) String() string {
	return fmt.Sprintf("%d kernel messages, %d bytes, %v", s.Messages, s.Bytes,
		s.Duration.Round(time.Microsecond))
}

// MarshalJSON writes s with its duration as text, such as "85µs".
func (s Stats) MarshalJSON() ([]byte, error) {
	type fields Stats
	v := struct {
		fields
		Duration string `json:"duration,omitempty"`
	}{fields: fields(s)}
	if s.Duration != 0 {
		v.Duration = s.Duration.String()
	}
	return json.Marshal(v)
}

// Plus returns the total cost of two commits.
func (s Stats) Plus(o Stats) Stats {
	s.Messages += o.Messages
	s.Bytes += o.Bytes
	s.Elements += o.Elements
	s.Duration += o.Duration
	return s
}
