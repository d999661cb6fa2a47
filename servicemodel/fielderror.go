package servicemodel

// FieldError is a problem with one field of one object. [State.Validate] joins them with
// errors.Join; find them with errors.As.
type FieldError struct {
	// Service is the service in whose definition or endpoints State.Validate found the problem. It
	// is zero for problems of the node, and in errors from elsewhere.
	Service Name
	Object  string // what it is about, such as "service default/web" or "node"
	Field   string // the path of the field, such as "ports[1].nodePort"
	Value   string // the offending value as text; empty if it is the absence that offends
	Reason  string // what is wrong
}

// Error returns "service default/web: ports[1].nodePort: 0x: reason".
func (e *FieldError) Error() string {
	s := e.Object + ": " + e.Field + ": "
	if e.Value != "" {
		s += e.Value + ": "
	}
	return s + e.Reason
}
