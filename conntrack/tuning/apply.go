package tuning

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/sysctls"
)

// ErrGlobalSetting: the setting applies to the whole machine. Only a privileged process in the
// initial network namespace can change it. The setting was left unchanged.
var ErrGlobalSetting = errors.New("a setting of the whole machine cannot be changed from here")

// NewPlan compares the desired settings with those of the kernel in the network namespace of the
// table. It changes nothing. It plans machine-wide settings in any namespace; only Apply finds out
// whether it may write them. NewPlan returns [ErrBadConfig], or [kernelerr.ErrMissingModule] if the
// kernel lacks a desired setting.
func NewPlan(ctx context.Context, t *conntrack.Table, want *Config) (Plan, error) {
	if t == nil {
		return nil, errors.New("plan the conntrack tuning: no conntrack table")
	}
	want = cmp.Or(want, &Config{})

	// The settings exist once conntrack is loaded, and a request loads its module.
	if _, err := t.Usage(ctx); err != nil {
		return nil, fmt.Errorf("plan the conntrack tuning: %w", err)
	}
	now, err := readSettings(ctx, t)
	if err != nil {
		return nil, fmt.Errorf("plan the conntrack tuning: read settings: %w", err)
	}
	p, err := want.plan(now, cores())
	if err != nil {
		return nil, fmt.Errorf("plan the conntrack tuning: %w", err)
	}
	return p, nil
}

// Apply writes the settings of the plan that differ, in the network namespace of the table. If a
// setting cannot be written, Apply continues with the next. The error joins all failures, among
// them [ErrGlobalSetting] and, for example in a container with a read-only /proc/sys,
// [kernelerr.ErrNoPermission].
func (p Plan) Apply(t *conntrack.Table) error {
	if t == nil {
		return errors.New("apply the conntrack tuning: no conntrack table")
	}
	files := sysctls.Files{In: t.Do}
	var errs []error
	for _, s := range p {
		if !s.changes() {
			continue
		}
		err := files.Write(context.Background(), sysctlDir+s.Name, strconv.FormatUint(s.New, 10))
		if err != nil {
			errs = append(errs, explain(s.Name, err))
		}
	}

	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("apply the conntrack tuning: %w", err)
	}
	return nil
}

// explain returns the reason why a setting could not be written. Outside the initial namespace, the
// files of machine-wide settings are read-only or, in older kernels, missing.
func explain(name string, err error) error {
	err = kernelerr.Permission(err)
	if slices.Contains(global, name) && (errors.Is(err, kernelerr.ErrNoPermission) ||
		errors.Is(err, fs.ErrNotExist)) {
		return fmt.Errorf("%w: %w", ErrGlobalSetting, err)
	}

	return err
}
