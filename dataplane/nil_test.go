package dataplane_test

import (
	"context"
	"fmt"
	"reflect"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// No function and no method panics because of a nil pointer, interface or function, or a zero
// value. The methods are all methods of the values below. Observers, backends and errors of other
// packages are not called.
func TestNothingPanicsBecauseOfNil(t *testing.T) {
	t.Parallel()
	var typed *memory.Backend
	for name, f := range map[string]any{
		"Resolve": servicemodel.Resolve, "Diff": servicemodel.Diff, "Select": servicemodel.Select,
		"NewTable": servicemodel.NewTable, "New": dataplane.New, "NewParts": dataplane.NewParts,
		"Choose": dataplane.Choose, "Probe": dataplane.Probe, "Notify": backends.Notify,
		"Problems": dataplane.Problems, "MarshalEvent": dataplane.MarshalEvent,
		"nftables.Check": nftables.Check, "iptables.Check": iptables.Check,
		"ipvs.Check": ipvs.Check, "memory.New": memory.New,
	} {
		callWithNil(t, name, reflect.ValueOf(f))
	}

	for _, v := range []any{
		servicemodel.State{}, (*servicemodel.Table)(nil), &servicemodel.Table{},
		(*servicemodel.ChangeSet)(nil), &servicemodel.ChangeSet{}, &servicemodel.Service{},
		&servicemodel.Frontend{}, &servicemodel.Pool{}, &servicemodel.Endpoint{},
		servicemodel.Cause{}, servicemodel.Warnings{}, servicemodel.Warning{},
		servicemodel.Rules{}, servicemodel.Trace{}, servicemodel.Conflict{},
		dataplane.New(nil, nil), dataplane.New(typed, nil), &dataplane.Engine{},
		dataplane.New(memory.New(nil), nil), dataplane.NewParts(nil, nil),
		dataplane.NewParts(typed, nil), dataplane.NewParts(memory.New(nil), nil),
		(*dataplane.Result)(nil), &dataplane.Result{}, &dataplane.Preview{}, dataplane.Status{},
		backends.Stats{}, dataplane.Phases{},
	} {
		of := reflect.ValueOf(v)
		for i := range of.NumMethod() {
			m := of.Type().Method(i).Name
			isNil := of.Kind() == reflect.Pointer && of.IsNil()
			if isNil && (m == "MarshalJSON" || m == "Plus") {
				continue // package json writes null; method of an embedded Stats
			}
			callWithNil(t, fmt.Sprintf("%T.%s", v, m), of.Method(i))
		}
	}
}

// callWithNil calls a function with zero values, except for a context that has ended.
func callWithNil(t *testing.T, name string, f reflect.Value) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("%s: panic: %v", name, r)
		}
	}()

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var args []reflect.Value
	n := f.Type().NumIn()
	if f.Type().IsVariadic() {
		n--
	}
	for i := range n {
		if in := f.Type().In(i); in == reflect.TypeFor[context.Context]() {
			args = append(args, reflect.ValueOf(ctx))
		} else {
			args = append(args, reflect.Zero(in))
		}
	}

	f.Call(args)
}
