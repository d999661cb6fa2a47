package servicemodel

import (
	"errors"
	"strings"
	"time"
)

// ConnectionPolicy says what happens to connections to an endpoint that a service loses. A service
// loses an endpoint that is deleted, is no longer ready, or is no longer available to this node.
// The policy covers TCP and SCTP connections, and UDP flows while the endpoint terminates but still
// serves. UDP flows to an endpoint that no longer serves are always deleted.
//
// The policy is not part of a table, so backends do not see it. Package dataplane/flows implements
// it.
type ConnectionPolicy struct {
	Mode ConnectionMode
	// Drain is the time that connections may continue before they are cut, at least one second.
	// Only DrainConnections uses it.
	Drain time.Duration
}

// ConnectionMode says how a [ConnectionPolicy] treats connections.
type ConnectionMode uint8

const (
	// ConnectionsDefault is the default: the program's policy for all services applies.
	ConnectionsDefault ConnectionMode = iota
	// LeaveConnections lets connections continue until one side closes them, as kube-proxy does.
	LeaveConnections
	// DrainConnections lets connections continue for the time Drain, and then cuts them.
	DrainConnections
	// CutConnections cuts connections at once, so that clients reconnect at once.
	CutConnections
)

// String returns "default", "leave", "drain 30s" or "cut".
func (p ConnectionPolicy) String() string {
	switch p.Mode {
	case ConnectionsDefault:
		return "default"
	case LeaveConnections:
		return "leave"
	case DrainConnections:
		return "drain " + p.Drain.String()
	case CutConnections:
		return "cut"
	}

	return "policy " + uitoa(uint16(p.Mode))
}

// ParseConnectionPolicy parses "leave", "cut", or a drain time such as "30s" or "drain 30s".
func ParseConnectionPolicy(s string) (ConnectionPolicy, error) {
	switch s {
	case "leave":
		return ConnectionPolicy{Mode: LeaveConnections}, nil
	case "cut":
		return ConnectionPolicy{Mode: CutConnections}, nil
	}

	d, err := time.ParseDuration(strings.TrimPrefix(s, "drain "))
	p := ConnectionPolicy{Mode: DrainConnections, Drain: d}
	if err != nil || p.problem() != nil {
		return ConnectionPolicy{}, errors.New("must be leave, cut, or a time of at least 1s")
	}
	return p, nil
}

// Validate returns the first problem of the policy as a [*FieldError], or nil.
func (p ConnectionPolicy) Validate() error {
	if e := p.problem(); e != nil {
		return e
	}
	return nil
}

func (p ConnectionPolicy) problem() *FieldError {
	const object = "connection policy"
	switch {
	case p.Mode > CutConnections:
		return &FieldError{Object: object, Field: "mode", Value: uitoa(uint16(p.Mode)),
			Reason: "unknown policy for connections"}
	case p.Mode == DrainConnections && p.Drain < time.Second:
		return &FieldError{Object: object, Field: "drain", Value: p.Drain.String(),
			Reason: "must be at least 1s"}
	}

	return nil
}
