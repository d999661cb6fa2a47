package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// spans makes an OpenTelemetry span for each call of an engine, with a child for each phase.
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

// A program that traces with OpenTelemetry sees the time of each phase of an apply.
func Example_openTelemetry() {
	ended := tracetest.NewSpanRecorder()
	tracer := sdk.NewTracerProvider(sdk.WithSpanProcessor(ended)).Tracer("example")
	engine := dataplane.New(memory.New(nil), &dataplane.Config{Span: spans(tracer)})

	state := servicemodel.State{}.WithService(&servicemodel.Service{
		Name:       servicemodel.Name{Namespace: "default", Name: "web"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}})
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
		fmt.Printf("%*s%s\n", depth, "", s.Name())
	}
	// Output:
	// kernlb apply
	//   kernlb lock
	//   kernlb resolve
	//   kernlb observe
	//   kernlb check
	//   kernlb commit
	//   kernlb settle
}
