package tuning

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/internal/refusal"
)

// ErrGlobalSetting: the setting belongs to the machine and can be changed from the initial network
// namespace only, by a process that may. It was left as it is.
var ErrGlobalSetting = errors.New("a setting of the whole machine cannot be changed from here")

// NewPlan compares the settings of the kernel, as they are in the network namespace of the table,
// with those wanted. Nothing is changed. Settings that belong to the machine are planned in any
// namespace; whether they can be written shows when they are. It returns [ErrBadConfig], or
// [conntrack.ErrMissingModule] if the kernel lacks a setting that is wanted.
func NewPlan(ctx context.Context, t *conntrack.Table, want *Config) (Plan, error) {
	if want == nil {
		want = &Config{}
	}
	// The settings are there once conntrack is, and a request loads its module.
	if _, err := t.Usage(ctx); err != nil {
		return nil, fmt.Errorf("plan the conntrack tuning: %w", err)
	}
	now, err := readSettings(t)
	if err != nil {
		return nil, fmt.Errorf("plan the conntrack tuning: read settings: %w", err)
	}
	p, err := want.plan(now, cores())
	if err != nil {
		return nil, fmt.Errorf("plan the conntrack tuning: %w", err)
	}
	return p, nil
}

// Apply writes the settings of the plan that change, in the network namespace of the table. One
// that cannot be written does not stop the others: the error joins what went wrong,
// [ErrGlobalSetting] and [conntrack.ErrNoPermission] among it.
func (p Plan) Apply(t *conntrack.Table) error {
	var errs []error
	for _, s := range p {
		if !s.Changes() {
			continue
		}
		if err := writeSetting(t, s.Name, s.New); err != nil {
			errs = append(errs, fmt.Errorf("set %s to %d: %w", s.Name, s.New,
				explain(s.Name, err)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("apply the conntrack tuning: %w", err)
	}
	return nil
}

// explain says why a setting could not be written. In other namespaces than the initial one,
// files of the machine's settings are read-only or, in older kernels, not there.
func explain(name string, err error) error {
	if slices.Contains(global, name) && (errors.Is(err, fs.ErrPermission) ||
		errors.Is(err, fs.ErrNotExist)) {
		return fmt.Errorf("%w: %w", ErrGlobalSetting, err)
	}
	return refusal.Permission(err)
}
