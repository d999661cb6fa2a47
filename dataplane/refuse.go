package dataplane

import (
	"errors"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// Refusal is a service that an apply left out, and why.
type Refusal struct {
	// Service is the service's name.
	Service servicemodel.Name
	// Err joins all that is wrong: *servicemodel.FieldError values if the service or one of its
	// endpoints is invalid, else *[UnsupportedError] and *[CollisionError] values.
	Err error
}

// String returns "default/web: " and the reason.
func (r Refusal) String() string { return r.Service.String() + ": " + r.Err.Error() }

func compareRefusals(a, b Refusal) int { return a.Service.Compare(b.Service) }

// draft is a state on its way to be applied: services that are refused leave it.
type draft struct {
	state   servicemodel.State
	strict  bool
	refused []Refusal
}

// resolve resolves the state without the services that are invalid.
func (d *draft) resolve(prev *servicemodel.Table) (*servicemodel.Table, error) {
	for {
		t, err := servicemodel.Resolve(prev, d.state)
		if err == nil {
			return t, nil
		}
		if err := d.leaveOut(err); err != nil {
			return nil, err
		}
	}
}

// leaveOut leaves out the services that err is about, at least one. It returns err if a part of it
// is about anything else, such as the node.
func (d *draft) leaveOut(err error) error {
	if d.strict {
		return refusedState{err}
	}
	problems := map[servicemodel.Name][]error{}
	for _, p := range leaves(err, nil) {
		name := serviceOf(p)
		if d.state.Service(name) == nil && d.state.Endpoints(name) == nil {
			return refusedState{err}
		}
		problems[name] = append(problems[name], p)
	}
	for name, errs := range problems {
		d.state = d.state.WithoutService(name)
		d.refused = append(d.refused, Refusal{Service: name, Err: errors.Join(errs...)})
	}
	slices.SortFunc(d.refused, compareRefusals)
	return nil
}

// leaves appends the errors that err joins.
func leaves(err error, to []error) []error {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range many.Unwrap() {
			to = leaves(e, to)
		}
		return to
	}
	return append(to, err)
}

// serviceOf returns the service that a problem is about; zero if it is about anything else.
func serviceOf(err error) servicemodel.Name {
	var field *servicemodel.FieldError
	var unsupported *UnsupportedError
	var collision *CollisionError
	switch {
	case errors.As(err, &field):
		return field.Service
	case errors.As(err, &unsupported):
		return unsupported.Service
	case errors.As(err, &collision):
		return collision.Service
	}
	return servicemodel.Name{}
}
