package backends

import (
	"errors"
	"fmt"

	"github.com/kernlb/kernlb/servicemodel"
)

// Errors of backends, in addition to the errors of package kernelerr. Find them with errors.Is.
var (
	// ErrUnsupported says that a backend cannot express the request. Every [UnsupportedError]
	// matches it.
	ErrUnsupported = errors.New("not supported by the backend")
	// ErrCollision says that an object of a service collides with a foreign object. Every
	// [CollisionError] matches it.
	ErrCollision = errors.New("something foreign is in the way")
	// ErrOtherLayout says that a version of kernlb with a different layout created the instance,
	// and that the backend cannot handle the request there.
	ErrOtherLayout = errors.New("the instance was made by another version of kernlb")
)

// CollisionError names a foreign kernel object that collides with a service.
type CollisionError struct {
	Backend string            // the backend's name
	Service servicemodel.Name // the service with the collision; zero for the whole instance
	Object  string            // such as "virtual server 192.0.2.1:80/tcp"
}

// Error returns "ipvs: service default/web: virtual server 192.0.2.1:80/tcp is not ours", and what
// to do about it.
func (e *CollisionError) Error() string {
	if e.Service == (servicemodel.Name{}) {
		return fmt.Sprintf("%s: %s is not ours: remove it, take it over, or give the instance "+
			"another name", e.Backend, e.Object)
	}
	return fmt.Sprintf("%s: service %s: %s is not ours: remove it, or give the service another "+
		"address or port", e.Backend, e.Service, e.Object)
}

// Is makes every CollisionError match [ErrCollision].
func (e *CollisionError) Is(target error) bool { return target == ErrCollision }

// UnsupportedError names a field that a backend cannot express.
type UnsupportedError struct {
	Backend string            // the backend's name
	Service servicemodel.Name // the service that requests it; zero for the node
	Object  string            // such as "service default/web:http"
	Field   string            // such as "scheduler"
	Value   string            // such as "lc"
	Hint    string            // an alternative, or the first kernel that supports it; may be empty
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
	FieldEndPort              = "endPort"                 // a range of ports
	FieldFamily               = "family"                  // an address family that the kernel lacks
	FieldForbidden            = "forbidden"               // [servicemodel.Node.Forbidden]
	FieldForwarding           = "forwarding"              // [servicemodel.Service.Forwarding]
	FieldLocalhostNodePorts   = "localhostNodePorts"      // [servicemodel.Node.LocalhostNodePorts]
	FieldMasquerade           = "masquerade"              // [servicemodel.Service.Masquerade]
	FieldMasqueradeIPs        = "masqueradeIPs"           // [servicemodel.Service.MasqueradeIPs]
	FieldMasqueradeNeighbours = "masqueradeNeighbours"    // a setting of [servicemodel.Node]
	FieldNoEndpoints          = "noEndpoints"             // [servicemodel.Node.NoEndpoints]
	FieldProtocol             = "protocol"                // of a port
	FieldScheduler            = "scheduler"               // [servicemodel.Service.Scheduler]
	FieldSessionAffinity      = "sessionAffinity"         // [servicemodel.Service.SessionAffinity]
	FieldAffinityTimeout      = "sessionAffinity.timeout" // how long clients are remembered
	FieldAffinityBits         = "sessionAffinity.bits"    // clients of a prefix count as one client
	FieldAffinityService      = "sessionAffinity.service" // one endpoint for a client at all ports
	FieldSources              = "sources"                 // source ranges
	FieldTargetPort           = "targetPort"              // a range that is mapped to another range
	FieldWeights              = "weights"                 // of endpoints
)
