package backends

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Backend keeps the services of one instance in one kernel mechanism of one network namespace. A
// backend translates: the table already contains all decisions that need no kernel.
//
// An engine calls the methods of a Backend one at a time, except those of [Watcher] and
// [Blamer].
//
// A Backend may have further interfaces, and an engine uses those it finds. [Settler] does work
// that commits leave for later. [Locker] lets the writers of an instance take turns. [Watcher]
// follows what the services depend on. [Blamer] names programs that undo repairs. [PartReader]
// reads the part of one owner. [OmitsPools] says that a reading may lack pools.
//
// A Backend that wraps another one must return it from a method Unwrap() Backend, or nil there to
// hide the other one's interfaces. An engine on a struct with another Backend in a field and
// without that method fails. A struct that embeds a concrete type, and not an interface, has all of
// its methods anyway.
type Backend interface {
	// Name is the backend's name: "nftables", "iptables", "ipvs", "memory", or the name of another
	// module's backend.
	Name() string

	// Check reports the changes that this backend cannot express, or cannot write because a foreign
	// object is in the way. It joins an *[UnsupportedError] or *[CollisionError] for each, with the
	// service concerned. Check looks only at the changes, may use the last observation, and changes
	// nothing. Plan and Commit refuse nothing that Check accepted.
	Check(c *servicemodel.ChangeSet) error

	// Observe reads what the kernel holds for this instance. want is a hint, or nil: a table that
	// the caller expects in the kernel or is about to write. With it a backend may read faster, by
	// asking for the objects of want. The hint does not change the result, except that an
	// observation with a hint may be [Observation.Partial]. The observation lacks pools for which
	// the kernel has no place now, but has the frontends that balance over them. The engine then
	// assumes that these pools are as wanted.
	//
	// An error that wraps [kernelerr.ErrConflict] says that other writers interrupted the reading.
	// Commit may then still begin from the previous observation, unless Integrity returns Broken.
	Observe(ctx context.Context, want *servicemodel.Table) (*Observation, error)

	// Integrity reports whether the kernel still holds what the last Observe or Commit left there.
	// Its time does not grow with the number of services. A neighbour that commits without changing
	// our objects never causes Broken or an error.
	Integrity(ctx context.Context) (Integrity, error)

	// Plan renders what Commit would send, and sends nothing.
	Plan(c *servicemodel.ChangeSet) (Plan, error)

	// Commit writes the change set, and repairs the drift of the last observation. The change set's
	// Old must equal the table of the last observation or commit. Commit uses one kernel
	// transaction: either all of it takes effect or none. A backend that needs several transactions
	// documents that. A change set that leads to an empty table without rules removes the instance.
	// Commit returns once the kernel has the change set. It fails only if the kernel may not have
	// it. Later work that can fail, such as forgetting clients, belongs to [Settler].
	//
	// An error that wraps [kernelerr.ErrConflict] has one of two reasons. Another writer of the
	// instance, or a person, changed what the change set begins from. Or a foreign object appeared,
	// after Check, where one of ours must be. A neighbour's commit alone is no conflict. After any
	// error the kernel must be observed before the next Commit.
	Commit(ctx context.Context, c *servicemodel.ChangeSet) (Stats, error)

	// Cleanup removes every trace of the instance from the kernel. If nothing is there, that is no
	// error.
	Cleanup(ctx context.Context) (Stats, error)

	// Close releases sockets. It leaves the kernel as it is. Later calls fail with
	// [kernelerr.ErrClosed], except Close itself, which returns nil.
	Close() error
}

// Observation is what a backend found in the kernel.
type Observation struct {
	// Table holds the complete objects. It is empty for an instance that was never applied.
	Table *servicemodel.Table `json:"table"`
	// Drift describes, one line each, objects that do not belong in the instance or are incomplete.
	// The next commit repairs them, even if its change set is empty.
	Drift []string `json:"drift,omitempty"`
	// Partial says that the kernel holds more objects, which belong neither to Table nor to want.
	// Only an observation without a hint finds them.
	Partial bool `json:"partial,omitzero"`
	// OtherLayout says that another version of kernlb made at least part of the drift. The backend
	// did not read that part, so its services are unknown.
	OtherLayout bool `json:"otherLayout,omitzero"`
	// OnlyOwners says that only the owners of [PartReader.ObserveParts] hold anything.
	OnlyOwners bool `json:"onlyOwners,omitzero"`
}

// Integrity says what happened to the kernel's state since the last reading or commit, as far as
// that shows without a full reading.
type Integrity int

const (
	// Intact means that only this backend has changed our objects.
	Intact Integrity = iota
	// Touched means that another program committed, but no other writer of the instance, and that
	// our skeleton is in place. A person may have changed an element. The engine remembers this and
	// reads when its ration allows. A backend may report it once or repeatedly.
	Touched
	// Broken means that at least part of our objects is gone or replaced, or that another writer of
	// the instance committed. The engine reads at once.
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
	Messages int `json:"messages"` // netlink messages sent, without batch begin and end
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
