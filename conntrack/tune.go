package conntrack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// ErrGlobalSetting: the setting belongs to the machine and can be changed from the initial network
// namespace only, by a process that may. It was left as it is.
var ErrGlobalSetting = errors.New("a setting of the whole machine cannot be changed from here")

// PlanTuning compares the kernel's settings with those wanted. Nothing is changed. Settings that
// belong to the machine are planned in any namespace; whether they can be written shows when they
// are.
func (t *Table) PlanTuning(ctx context.Context, want Tuning) (TuningPlan, error) {
	// The settings are there once conntrack is, and a request loads its module.
	if _, err := t.usage(ctx); err != nil {
		return nil, fmt.Errorf("plan the conntrack tuning: %w", explain(err))
	}
	now, err := t.readSettings()
	if err != nil {
		return nil, fmt.Errorf("plan the conntrack tuning: read settings: %w", explain(err))
	}
	p, err := want.plan(now, cores())
	if err != nil {
		return nil, fmt.Errorf("plan the conntrack tuning: %w", err)
	}
	return p, nil
}

// ApplyTuning writes the settings of the plan that change. One that cannot be written does not stop
// the others: the error joins what went wrong, [ErrGlobalSetting] and [ErrPermission] among it.
func (t *Table) ApplyTuning(p TuningPlan) error {
	var errs []error
	for _, s := range p {
		if !s.Changes() {
			continue
		}
		if err := t.writeSetting(s.Name, s.New); err != nil {
			errs = append(errs, fmt.Errorf("set %s to %d: %w", s.Name, s.New,
				explainSetting(s.Name, err)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("apply the conntrack tuning: %w", err)
	}
	return nil
}

// explainSetting says why a setting could not be written. In other namespaces than the initial one,
// files of the machine's settings are read-only or, in older kernels, not there.
func explainSetting(name string, err error) error {
	if slices.Contains(global, name) && (errors.Is(err, fs.ErrPermission) ||
		errors.Is(err, fs.ErrNotExist)) {
		return fmt.Errorf("%w: %w", ErrGlobalSetting, err)
	}
	return explain(err)
}

// countCPUs counts the CPUs in a list such as "0-3,8" (Documentation/admin-guide/cputopology.rst).
func countCPUs(list string) (int, bool) {
	n := 0
	for _, part := range strings.Split(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(part, "-")
		low, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return 0, false
		}
		high := low
		if isRange {
			if high, err = strconv.ParseUint(last, 10, 16); err != nil || high < low {
				return 0, false
			}
		}
		n += int(high - low + 1)
	}
	return n, true
}
