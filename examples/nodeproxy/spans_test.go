package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// spans creates an OpenTelemetry span for each call of an engine, with a child for each phase.
func spans(tracer trace.Tracer) func(context.Context, string) (context.Context, func(error)) {
	return func(ctx context.Context, name string) (context.Context, func(error)) {
		ctx, span := tracer.Start(ctx, "kernlb "+name)
		return ctx, func(err error) {
			if err != nil {
				span.RecordError(err)
				span.SetStatus(codes.Error, err.Error())
			}
			span.End()
		}
	}
}

// describe adds the outcome of an apply to its span: observers get the context of the call.
func describe(ctx context.Context, ev dataplane.Event) {
	applied, ok := ev.(dataplane.Applied)
	if !ok {
		return
	}
	var refused []string
	for _, r := range applied.Refused {
		refused = append(refused, r.Service.String())
	}
	trace.SpanFromContext(ctx).SetAttributes(
		attribute.Int64("revision", int64(applied.Revision)),
		attribute.Int("added", applied.Counts.Added),
		attribute.Int("changed", applied.Counts.Changed),
		attribute.Int("removed", applied.Counts.Removed),
		attribute.StringSlice("refused", refused))
}

// A program that traces with OpenTelemetry sees the time of each phase of an apply, the changes,
// and the refused services.
func Example_openTelemetry() {
	ended := tracetest.NewSpanRecorder()
	tracer := sdk.NewTracerProvider(sdk.WithSpanProcessor(ended)).Tracer("example")
	engine := dataplane.New(memory.New(nil), &dataplane.Config{Span: spans(tracer)})
	engine.Subscribe(describe)

	state := servicemodel.State{}.WithService(&servicemodel.Service{
		Name:       servicemodel.Name{Namespace: "default", Name: "web"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}})
	state = state.WithService(&servicemodel.Service{ // port 0 is refused
		Name:       servicemodel.Name{Namespace: "default", Name: "db"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.11")},
		Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP}}})
	if _, err := engine.Apply(context.Background(), state); err != nil {
		fmt.Println(err)
	}
	all := ended.Ended()
	slices.SortStableFunc(all, func(a, b sdk.ReadOnlySpan) int {
		return a.StartTime().Compare(b.StartTime())
	})
	for _, s := range all {
		depth := 0
		if s.Parent().IsValid() {
			depth = 2
		}
		fmt.Printf("%*s%s", depth, "", s.Name())
		for _, a := range s.Attributes() {
			fmt.Printf(" %s=%v", a.Key, a.Value.Emit())
		}
		fmt.Println()
	}
	// Output:
	// kernlb apply revision=1 added=1 changed=0 removed=0 refused=["default/db"]
	//   kernlb lock
	//   kernlb resolve
	//   kernlb observe
	//   kernlb check
	//   kernlb commit
	//   kernlb settle
}
