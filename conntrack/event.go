package conntrack

import (
	"fmt"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// EventType says what happened to a flow.
type EventType string

// The types of events.
const (
	FlowNew       EventType = "new"       // the flow was made
	FlowUpdated   EventType = "updated"   // its status, protocol state or mark changed
	FlowDestroyed EventType = "destroyed" // it ended or was deleted
	// EventsLost says that the buffer of the socket was full: an unknown number of events is
	// missing here. A program that keeps a copy of the table must list it anew.
	EventsLost EventType = "lost"
)

// Event is one change in the table.
type Event struct {
	Type EventType
	// Flow is the flow at the time of the event, as far as the kernel reports it: older kernels
	// leave the status, the timeout and the protocol state out of events about destroyed flows. It
	// is zero in EventsLost.
	Flow Flow
}

// eventGroups returns the multicast groups of the types (NFNLGRP_CONNTRACK_NEW, _UPDATE and
// _DESTROY, include/uapi/linux/netfilter/nfnetlink.h).
func eventGroups(types []EventType) ([]uint32, error) {
	if len(types) == 0 {
		types = []EventType{FlowNew, FlowUpdated, FlowDestroyed}
	}
	var groups []uint32
	for _, t := range types {
		switch t {
		case FlowNew:
			groups = append(groups, 1)
		case FlowUpdated:
			groups = append(groups, 2)
		case FlowDestroyed:
			groups = append(groups, 3)
		case EventsLost:
		default:
			return nil, fmt.Errorf("there is no type %q", t)
		}
	}
	return groups, nil
}

// parseEvent parses a message of the multicast groups into e. It returns errUnwanted if wants
// rejects the flow, see parseFlow.
func parseEvent(m rawnl.Message, e *Event, wants func(*Flow) bool) error {
	switch {
	case m.Subsys != rawnl.SubsysConntrack || m.Type != msgNew && m.Type != msgDelete:
		return fmt.Errorf("%w: an event of type %d of subsystem %d", rawnl.ErrMalformed, m.Type,
			m.Subsys)
	case m.Type == msgDelete:
		e.Type = FlowDestroyed
	case m.Flags&rawnl.FlagCreate != 0:
		e.Type = FlowNew
	default:
		e.Type = FlowUpdated
	}
	return parseFlow(m.Attrs, &e.Flow, wants)
}
