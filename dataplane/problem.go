package dataplane

import (
	"errors"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

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
