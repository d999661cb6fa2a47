package dataplane

import (
	"errors"
	"fmt"

	"github.com/kernlb/kernlb/internal/refusal"
	"github.com/kernlb/kernlb/servicemodel"
)

// Errors that callers act on; find them with errors.Is. docs/errors.md says what to do about each.
// On other systems than Linux, what needs a kernel fails with errors.ErrUnsupported.
var (
	// ErrNoPermission says that the process may not do something: to open a backend takes
	// CAP_NET_ADMIN in the user namespace that owns the network namespace, for IPVS in the initial
	// one, and to enter another network namespace CAP_SYS_ADMIN. Such errors match
	// fs.ErrPermission, too.
	ErrNoPermission = refusal.ErrNoPermission
	// ErrMissingModule says that the kernel lacks a module, or has it and does not load it by
	// itself, or was built without an option. The text names the module where that can be told.
	ErrMissingModule = refusal.ErrMissingModule
	// ErrKernelTooOld says that the kernel is older than what the backend needs, and lacks
	// something of it.
	ErrKernelTooOld = refusal.ErrKernelTooOld
	// ErrConflict says that another program changed the kernel's state between reading and
	// writing. The engine reads again and tries again; it returns the error if that goes on.
	ErrConflict = refusal.ErrConflict
	// ErrRefused says that a state was refused as a whole, and that nothing was touched: because of
	// what is wrong with the node, or with a service if [Config.Strict] is set or the state is that
	// of a part. The same state is refused again, until what is in its way is gone.
	ErrRefused = errors.New("state refused")
	// ErrUnsupported says that a backend cannot express what was asked for. It is matched by every
	// [UnsupportedError].
	ErrUnsupported = errors.New("not supported by the backend")
	// ErrCollision says that something that is not the instance's is where something of a service
	// must be. It is matched by every [CollisionError].
	ErrCollision = errors.New("something foreign is in the way")
	// ErrUnsettled says that the kernel holds the state, but that work which this or an earlier
	// commit left to a later time failed: stale flows are still there, or endpoints that have
	// drained. [Engine.Apply] then returns a result and an error. The next Apply or [Engine.Settle]
	// tries again.
	ErrUnsettled = errors.New("applied, but not settled")
	// ErrOtherLayout says that an instance was made by a version of kernlb with another layout, so
	// that parts cannot be changed without loss for their owners. [Engine.Apply] replaces such an
	// instance, and [Engine.Cleanup] removes it.
	ErrOtherLayout = errors.New("the instance was made by another version of kernlb")
	// ErrRunning says that [Engine.Run] is under way already.
	ErrRunning = errors.New("the engine runs already")
)

// refusedState is why a state was refused as a whole.
type refusedState struct{ error }

func (e refusedState) Unwrap() error { return e.error }

// Is makes every refusedState match [ErrRefused].
func (refusedState) Is(target error) bool { return target == ErrRefused }

// OpError is one refusal by the kernel, found with errors.As in what backends return. It says what
// was being done (Op) to which kernel object (Object), with which error (Errno) and explanation
// (ExtAck, the text of the extended acknowledgement). It matches its errno, and [ErrNoPermission]
// where that says so.
type OpError = refusal.OpError

// CollisionError names a kernel object that is in the way of a service and is not the instance's.
type CollisionError struct {
	Backend string            // the backend's name
	Service servicemodel.Name // whose way it is in
	Object  string            // such as "virtual server 192.0.2.1:80/tcp"
}

// Error returns "ipvs: service default/web: virtual server 192.0.2.1:80/tcp is not ours".
func (e *CollisionError) Error() string {
	return fmt.Sprintf("%s: service %s: %s is not ours", e.Backend, e.Service, e.Object)
}

// Is makes every CollisionError match [ErrCollision].
func (e *CollisionError) Is(target error) bool { return target == ErrCollision }

// UnsupportedError names a field that a backend cannot express.
type UnsupportedError struct {
	Backend string            // the backend's name
	Service servicemodel.Name // the service that asks for it; zero if the node does
	Object  string            // such as "service default/web:http"
	Field   string            // such as "scheduler"
	Value   string            // such as "lc"
	Hint    string            // what could express it, or from which kernel on; may be empty
}

// Error returns "nftables cannot express service default/web:http: scheduler: lc (hint)".
func (e *UnsupportedError) Error() string {
	s := fmt.Sprintf("%s cannot express %s: %s: %s", e.Backend, e.Object, e.Field, e.Value)
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Is makes every UnsupportedError match [ErrUnsupported].
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }
