package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane"
)

// metricsText returns those metrics of dataplane/metrics that the alerts need, under the same
// names. A Prometheus client would be larger than the rest of the program.
func metricsText(s *dataplane.Status, problems int) string {
	pending, running := 0.0, 0.0
	if s.Pending() {
		pending = time.Since(s.PendingSince).Seconds()
	}
	if s.Running {
		running = 1
	}
	var b strings.Builder
	for _, m := range []struct {
		name, kind, help string
		value            float64
	}{
		{"running", "gauge", "1 while the engine keeps the kernel as it should be.", running},
		{"pending_seconds", "gauge",
			"How long something that is wanted has not been in the kernel; 0 if all is.", pending},
		{"input_problems", "gauge", "What is wrong with the manifests.", float64(problems)},
		{"refused_services", "gauge",
			"Services that are refused: left out of the kernel, or left as they were.",
			float64(len(s.Refused))},
		{"claim_conflicts", "gauge",
			"Addresses and ports that a service claims and another one has.",
			float64(len(s.Conflicts))},
		{"wanted_services", "gauge", "Services that are wanted.", float64(s.State.Len())},
		{"repairs_total", "counter",
			"Applies that put right what others had done to the kernel.",
			float64(s.Totals.Repairs)},
	} {
		fmt.Fprintf(&b, "# HELP kernlb_%s %s\n# TYPE kernlb_%s %s\nkernlb_%s %g\n", m.name,
			m.help, m.name, m.kind, m.name, m.value)
	}
	return b.String()
}
