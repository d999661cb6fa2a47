package servicemodel

import (
	"errors"
	"strings"
	"time"
)

// ConnectionPolicy says what becomes of the connections that an endpoint has when it is taken away
// from a service: because it is gone, is no longer ready, or is not to be used by this node any
// more. It is about connections of TCP and SCTP, and about flows of UDP while the endpoint
// terminates but still serves. UDP flows to an endpoint that does not serve are never left to it.
//
// The policy is not part of a table and no backend sees it: conntrack/flows carries it out.
type ConnectionPolicy struct {
	Mode ConnectionMode
	// Drain is how long connections may go on before they are cut. It counts with DrainConnections
	// only, and is at least a second.
	Drain time.Duration
}

// ConnectionMode is what a [ConnectionPolicy] does.
type ConnectionMode uint8

const (
	// ConnectionsDefault does what the program does for all services. The default.
	ConnectionsDefault ConnectionMode = iota
	// LeaveConnections lets connections go on until an end closes them. It is what kube-proxy does.
	LeaveConnections
	// DrainConnections lets them go on for some time, and then cuts them.
	DrainConnections
	// CutConnections cuts them at once, so that clients connect again at once.
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

// ParseConnectionPolicy returns the policy that s says: "leave", "cut", or how long connections are
// drained, such as "30s" or "drain 30s".
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

// Validate returns what is wrong with the policy, as a [*FieldError]; nil if nothing is.
func (p ConnectionPolicy) Validate() error {
	if e := p.problem(); e != nil {
		return e
	}
	return nil
}

func (p ConnectionPolicy) problem() *FieldError {
	e := FieldError{Object: "connection policy"}
	switch {
	case p.Mode > CutConnections:
		e.Field, e.Value, e.Reason = "mode", uitoa(uint16(p.Mode)), "unknown policy for connections"
	case p.Mode == DrainConnections && p.Drain < time.Second:
		e.Field, e.Value, e.Reason = "drain", p.Drain.String(), "must be at least 1s"
	default:
		return nil
	}
	return &e
}
