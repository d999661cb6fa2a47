package dataplane

import (
	"errors"
	"fmt"
	"strings"

	"github.com/kernlb/kernlb/internal/kernelerr"
	"github.com/kernlb/kernlb/servicemodel"
)

// Errors that callers act on; find them with errors.Is. docs/errors.md says what to do about each.
// On systems other than Linux, everything that needs a kernel fails with errors.ErrUnsupported.
var (
	// ErrNoPermission says that the process lacks a capability. Opening a backend takes
	// CAP_NET_ADMIN in the user namespace that owns the network namespace; for IPVS, in the initial
	// one. Entering another network namespace takes CAP_SYS_ADMIN. Such errors also match
	// fs.ErrPermission.
	ErrNoPermission = kernelerr.ErrNoPermission
	// ErrMissingModule says that the kernel lacks a module, does not load it by itself, or was
	// built without an option. The text names the module if it can be determined.
	ErrMissingModule = kernelerr.ErrMissingModule
	// ErrKernelTooOld says that the kernel is too old for the backend.
	ErrKernelTooOld = kernelerr.ErrKernelTooOld
	// ErrConflict says that another program changed the kernel's state between reading and writing.
	// The engine reads and tries again, and returns the error if the conflicts go on.
	ErrConflict = kernelerr.ErrConflict
	// ErrClosed says that the backend was closed.
	ErrClosed = kernelerr.ErrClosed
	// ErrRefused says that a state was refused as a whole, and that nothing was changed. The reason
	// is the node. With [Config.Strict], or in the state of a part, it can also be a service. The
	// same state is refused again until the reason is gone.
	ErrRefused = errors.New("state refused")
	// ErrNotApproved says that [Config.Approve] returned an error, and that nothing was changed. It
	// wraps Approve's error.
	ErrNotApproved = errors.New("not approved")
	// ErrUnsupported says that a backend cannot express the request. Every [UnsupportedError]
	// matches it.
	ErrUnsupported = errors.New("not supported by the backend")
	// ErrCollision says that a foreign object is where an object of a service must be. Every
	// [CollisionError] matches it.
	ErrCollision = errors.New("something foreign is in the way")
	// ErrUnsettled says that the kernel holds the state, but that later work of this or an earlier
	// commit failed: there are still stale flows, or endpoints that have drained. [Engine.Apply],
	// [Engine.ApplyChanges] and [Engine.Switch] then return a result and an error. The next Apply
	// or [Engine.Settle] tries again.
	ErrUnsettled = errors.New("applied, but not settled")
	// ErrOtherLayout says that a version of kernlb with another layout made the instance.
	// [Parts.Apply] fails with it while another owner holds anything, because the instance cannot
	// be replaced without loss for that owner. [Parts.Remove] and [Parts.Keep] can still remove
	// parts, and remove the instance with the last of them. They fail with this error only if the
	// backend cannot tell which frontends belong to whom. [Engine.Apply] replaces such an instance,
	// and [Engine.Cleanup] removes it.
	ErrOtherLayout = errors.New("the instance was made by another version of kernlb")
	// ErrRunning says that another [Engine.Run] of the engine is running.
	ErrRunning = errors.New("the engine runs already")
)

// refusedState is the reason why a state was refused as a whole.
type refusedState struct{ error }

func (e refusedState) Unwrap() error { return e.error }

// Is makes every refusedState match [ErrRefused].
func (refusedState) Is(target error) bool { return target == ErrRefused }

// OpError is a refusal by the kernel; find it with errors.As in errors of backends. It names the
// operation (Op), the kernel object (Object), the error (Errno), and the explanation (ExtAck, the
// text of the extended acknowledgement). It matches its errno. It also matches [ErrNoPermission] if
// the errno means that.
type OpError = kernelerr.OpError

// CollisionError names a foreign kernel object that is in the way of a service.
type CollisionError struct {
	Backend string            // the backend's name
	Service servicemodel.Name // the service concerned; zero if it is the whole instance
	Object  string            // such as "virtual server 192.0.2.1:80/tcp"
}

// Error returns "ipvs: service default/web: virtual server 192.0.2.1:80/tcp is not ours".
func (e *CollisionError) Error() string {
	if e.Service == (servicemodel.Name{}) {
		return fmt.Sprintf("%s: %s is not ours", e.Backend, e.Object)
	}
	return fmt.Sprintf("%s: service %s: %s is not ours", e.Backend, e.Service, e.Object)
}

// Is makes every CollisionError match [ErrCollision].
func (e *CollisionError) Is(target error) bool { return target == ErrCollision }

// UnsupportedError names a field that a backend cannot express.
type UnsupportedError struct {
	Backend string            // the backend's name
	Service servicemodel.Name // the service that asks for it; zero for the node
	Object  string            // such as "service default/web:http"
	Field   string            // such as "scheduler"
	Value   string            // such as "lc"
	Hint    string            // an alternative, or the first kernel that has it; may be empty
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

// Fields that backends refuse ([UnsupportedError.Field]). A field that is invalid for every backend
// has its path in JSON, such as "ports[1].nodePort" ([servicemodel.FieldError]).
const (
	FieldFamily               = "family"                  // an address family that the kernel lacks
	FieldForbidden            = "forbidden"               // [servicemodel.Node.Forbidden]
	FieldForwarding           = "forwarding"              // [servicemodel.Service.Forwarding]
	FieldLocalhostNodePorts   = "localhostNodePorts"      // [servicemodel.Node.LocalhostNodePorts]
	FieldMasquerade           = "masquerade"              // [servicemodel.Service.Masquerade]
	FieldMasqueradeNeighbours = "masqueradeNeighbours"    // a setting of [servicemodel.Node]
	FieldNoEndpoints          = "noEndpoints"             // [servicemodel.Node.NoEndpoints]
	FieldProtocol             = "protocol"                // of a port
	FieldScheduler            = "scheduler"               // [servicemodel.Service.Scheduler]
	FieldSessionAffinity      = "sessionAffinity"         // [servicemodel.Service.SessionAffinity]
	FieldAffinityTimeout      = "sessionAffinity.timeout" // how long clients are remembered
	FieldAffinityBits         = "sessionAffinity.bits"    // clients of a prefix count as one
	FieldAffinityService      = "sessionAffinity.service" // one endpoint at all ports
	FieldSources              = "sources"                 // source ranges
	FieldWeights              = "weights"                 // of endpoints
)

// Problem is one problem of a request.
type Problem struct {
	// Service is the service concerned. It is zero for a problem of the node or of anything else.
	Service servicemodel.Name
	// Object, Field and Value come from Err. They are empty if Err does not have them.
	Object, Field, Value string
	// Err is a *[servicemodel.FieldError], *[UnsupportedError], *[CollisionError] or
	// *[servicemodel.TakenError], or any other error that does not join several.
	Err error
}

// Problems splits err into problems, one for each joined error. It accepts the errors of this
// package (of [Refusal], [PartRefused], [Engine.Apply] and [Parts.Apply]), and of Validate, Resolve
// and Check, however they are wrapped. If some of the wrapped errors have the types that [Problem]
// names, the text around them is left out. A nil error has no problems.
func Problems(err error) []Problem {
	if err == nil {
		return nil
	}
	l, _ := problems(err)
	return l
}

// problems is Problems. typed reports whether any problem has one of the types that [Problem]
// names.
func problems(err error) (l []Problem, typed bool) {
	p := Problem{Err: err}
	switch e := err.(type) {
	case *servicemodel.FieldError:
		p.Service, p.Object, p.Field, p.Value = e.Service, e.Object, e.Field, e.Value
		return []Problem{p}, true
	case *UnsupportedError:
		p.Service, p.Object, p.Field, p.Value = e.Service, e.Object, e.Field, e.Value
		return []Problem{p}, true
	case *CollisionError:
		p.Service, p.Object = e.Service, e.Object
		return []Problem{p}, true
	case *servicemodel.TakenError:
		p.Service, p.Object = e.Claimant.Name, e.Key.String()
		return []Problem{p}, true
	case interface{ Unwrap() []error }:
		var texts []string
		for _, inner := range e.Unwrap() {
			of, ok := problems(inner)
			l, typed, texts = append(l, of...), typed || ok, append(texts, inner.Error())
		}
		if typed || err.Error() == strings.Join(texts, "\n") {
			return l, typed
		}
	default:
		if inner := errors.Unwrap(err); inner != nil {
			if l, typed = problems(inner); typed || len(l) > 1 {
				return l, typed
			}
		}
	}
	return []Problem{p}, false
}
