package dataplane

import (
	"errors"
	"strings"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// Errors that callers act on; find them with errors.Is. docs/errors.md says what to do about each.
// On systems other than Linux, everything that needs a kernel fails with errors.ErrUnsupported.
var (
	// ErrRefused says that a state was refused as a whole, and nothing was changed. The reason is a
	// problem of the node or, with [Config.Strict] and for parts, of a service. The same state is
	// refused again until the reason is gone.
	ErrRefused = errors.New("state refused")
	// ErrNotApproved says that [Config.Approve] returned an error, and nothing was changed. It
	// wraps Approve's error.
	ErrNotApproved = errors.New("not approved")
	// ErrRunning says that another [Engine.Run] of the engine is running.
	ErrRunning = errors.New("the engine runs already")
)

// refusedState is the reason why a state was refused as a whole.
type refusedState struct{ error }

func (e refusedState) Unwrap() error { return e.error }

// Is makes every refusedState match [ErrRefused].
func (refusedState) Is(target error) bool { return target == ErrRefused }

// Problem is one thing that is wrong with a request.
type Problem struct {
	// Service is the service with the problem. It is zero for a problem of the node or of something
	// else.
	Service servicemodel.Name
	// Object, Field and Value come from Err. They are empty if Err does not have them.
	Object, Field, Value string
	// Err is a *[servicemodel.FieldError], *[backends.UnsupportedError], *[backends.CollisionError]
	// or *[servicemodel.TakenError], or any other error that does not join several errors.
	Err error
}

// Problems splits err into problems, one for each joined error. It accepts the errors of this
// package (of [Refusal], [PartRefused], [Engine.Apply] and [Parts.Apply]), of Validate, Resolve and
// Check, and of json.Unmarshal for the types of package servicemodel, however they are wrapped. If
// some of the wrapped errors have a type that [Problem.Err] names, the text around these errors is
// left out. A nil error has no problems.
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
	case *backends.UnsupportedError:
		p.Service, p.Object, p.Field, p.Value = e.Service, e.Object, e.Field, e.Value
		return []Problem{p}, true
	case *backends.CollisionError:
		p.Service, p.Object = e.Service, e.Object
		return []Problem{p}, true
	case *servicemodel.TakenError:
		p.Service, p.Object = e.Claimant.Name, e.Key.String()
		p.Field, p.Value = e.Field, e.Claim.String()
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
