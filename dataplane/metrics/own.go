package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/servicemodel"
)

// durationBuckets range from 10 µs, less than the smallest apply, to 42 s.
var durationBuckets = prometheus.ExponentialBuckets(10e-6, 4, 12)

// ownMetrics are the metrics that kube-proxy does not have.
type ownMetrics struct {
	info, running *values

	apply                                   prometheus.Observer
	phase                                   *prometheus.HistogramVec
	applies, changes, repaired              *prometheus.CounterVec
	messages, bytes, elements               *prometheus.CounterVec
	failures, conflicts, switches           *prometheus.CounterVec
	scrapeErrors                            *prometheus.CounterVec
	readings, refusals, repairs             prometheus.Counter
	delays, watchFailures                   prometheus.Counter
	flowsDeleted, flowsReset                prometheus.Counter
	succeeded, failed, settle               *values
	pending, refused, claims, wrong, silent *values
	wantedServices, heldServices            *values
	wantedEndpoints, heldEndpoints          *values
	heldFrontends, adopted                  *values
	draining, connections                   *values
	services, warnings                      *values
	nodeFindings                            *values

	conntrackCount, conntrackMax, conntrackEvents    *values
	serviceConnections, servicePackets, serviceBytes *values

	had   history
	found *int // frontends that the last adoption found
}

const doingSettle = "settle"

func newOwnMetrics(r *maker) *ownMetrics {
	m := &ownMetrics{}
	m.makeWork(r)
	m.makeTrouble(r)
	m.makeState(r)
	m.makeConntrack(r)
	m.begin()
	return m
}

// makeWork creates the metrics of the engine's work.
func (m *ownMetrics) makeWork(r *maker) {
	m.applies = r.counters("kernlb_applies_total", "Applies that changed something in the kernel, "+
		"found nothing to change, or failed.", "result")
	m.apply = r.histograms("kernlb_apply_duration_seconds",
		"The duration of applies, including failed applies.", durationBuckets).WithLabelValues()
	m.phase = r.histograms("kernlb_phase_duration_seconds",
		"The duration of each phase of the engine's work, if it took any time.",
		durationBuckets, "phase")
	m.changes = r.counters("kernlb_changes_total",
		"Frontends and endpoints that were added, changed and removed because the wanted state "+
			"changed.", "type")
	m.readings = r.counter("kernlb_readings_total", "Applies that read the kernel's contents.")
	m.messages = r.counters("kernlb_kernel_messages_total",
		"Netlink messages sent by commits.", "backend")
	m.bytes = r.counters("kernlb_kernel_sent_bytes_total", "Bytes sent by commits.", "backend")
	m.elements = r.counters("kernlb_kernel_elements_total",
		"Set elements, rules or destinations that were written individually.", "backend")
	m.switches = r.counters("kernlb_switches_total", "Changes to a different backend.", "backend")
	m.flowsDeleted = r.counter("kernlb_flows_deleted_total",
		"Stale flows that were deleted from the conntrack table.")
	m.flowsReset = r.counter("kernlb_flows_reset_total",
		"TCP connections among the deleted flows whose ends were reset.")
}

func (m *ownMetrics) makeTrouble(r *maker) {
	m.failures = r.counters("kernlb_failures_total",
		"Failures by operation and phase. Failed work is retried.", "doing", "phase")
	m.conflicts = r.counters("kernlb_write_conflicts_total",
		"Tries that another writer of the kernel interrupted, and that were repeated.", "doing")
	m.refusals = r.counter("kernlb_refusals_total",
		"Services and families that were newly refused, or refused for a new reason.")
	m.repairs = r.counter("kernlb_repairs_total",
		"Applies that repaired changes by other programs.")
	m.repaired = r.counters("kernlb_repaired_total",
		"Repaired objects: frontends and endpoints that were added, changed and removed to undo "+
			"changes by other programs, and foreign objects.", "type")
	m.delays = r.counter("kernlb_repair_delays_total",
		"Times that repairs began to wait, because another program keeps undoing them.")
	m.watchFailures = r.counter("kernlb_watch_failures_total",
		"Failures to follow the addresses of the node.")
	m.scrapeErrors = r.counters("kernlb_scrape_errors_total",
		"Figures that a scrape could not read from the kernel.", "figure")
}

// makeState creates the metrics of the present state.
func (m *ownMetrics) makeState(r *maker) {
	m.info = r.gauge("kernlb_info", "1, with the name of the backend in use.", "backend")
	m.running = r.gauge("kernlb_running",
		"1 while Engine.Run keeps the kernel at the wanted state.")
	m.succeeded = r.gauge("kernlb_last_success_timestamp_seconds",
		"The time of the last successful apply.")
	m.failed = r.gauge("kernlb_last_failure_timestamp_seconds", "The time of the last failure.")
	m.settle = r.gauge("kernlb_settle_timestamp_seconds",
		"The time at which later work, such as draining, is due; absent without such work.")
	m.pending = r.gauge("kernlb_pending_seconds",
		"The time that the wanted state has been waiting for the kernel; 0 if the kernel holds it.")
	m.refused = r.gauge("kernlb_refused_services",
		"Services that are refused: left out of the kernel, or left as they were. "+
			"A family that the kernel lacks counts as one.")
	m.wrong = r.gauge("kernlb_input_problems",
		"Problems of the program's input that no refusal reports, such as a broken manifest.")
	m.silent = r.gauge("kernlb_silent_endpoints", "Endpoints that do not answer clients: "+
		"ejected, or on trial without an answer so far.")
	m.claims = r.gauge("kernlb_claim_conflicts",
		"Addresses and ports that a service claims and another service has.")
	m.warnings = r.gauge("kernlb_warnings",
		"Warnings about services, such as an endpoint without the wanted port.")
	m.services = r.gauge("kernlb_services",
		"Wanted services by the outcome for their clients at this node: serve, local (the "+
			"endpoints are on other nodes), reject (an address has no endpoints), nowhere (no "+
			"address), refused. Absent while the kernel's contents are unknown.", "outcome")
	m.nodeFindings = r.gauge("kernlb_node_checks",
		"Findings of each check of the node: faults that lose connections of clients now "+
			"(error) or perhaps (warning).", "check", "severity")
	m.wantedServices = r.gauge("kernlb_wanted_services", "Services in the wanted state.")
	m.wantedEndpoints = r.gauge("kernlb_wanted_endpoints",
		"Endpoints in the wanted state, ready or not, on any node.")
	m.heldServices = r.gauge("kernlb_held_services", "Services in the kernel.")
	m.heldFrontends = r.gauge("kernlb_held_frontends",
		"Addresses and ports of services in the kernel.")
	m.heldEndpoints = r.gauge("kernlb_held_endpoints",
		"Endpoints in the kernel; an endpoint of two ports counts twice.")
	m.adopted = r.gauge("kernlb_adopted_frontends",
		"Frontends that the first apply found in the kernel.")
	m.draining = r.gauge("kernlb_draining_endpoints",
		"Endpoints that get no new flows but keep their existing flows.")
}

// makeConntrack creates the metrics of the conntrack table.
func (m *ownMetrics) makeConntrack(r *maker) {
	m.conntrackCount = r.gauge("kernlb_conntrack_entries",
		"Flows in the conntrack table of this network namespace.")
	m.conntrackMax = r.gauge("kernlb_conntrack_entries_limit",
		"The maximum number of flows; 0 means no limit.")
	m.conntrackEvents = r.values(prometheus.CounterValue, "kernlb_conntrack_events_total",
		"The kernel's conntrack statistics since the creation of the network namespace.", "event")
	m.connections = r.gauge("kernlb_service_connections",
		"Flows in the conntrack table that were sent to the service.", "namespace", "service")
	m.serviceConnections = r.values(prometheus.CounterValue, "kernlb_service_connections_total",
		"Connections to the service since the first scrape.", "namespace", "service")
	m.servicePackets = r.values(prometheus.CounterValue, "kernlb_service_packets_total",
		"Packets from clients of the service to endpoints (in), and back (out).", "namespace",
		"service", "direction")
	m.serviceBytes = r.values(prometheus.CounterValue, "kernlb_service_bytes_total",
		"Bytes of these packets, including IP headers.", "namespace", "service", "direction")
}

// begin creates counters with the value 0, so that a rate includes the first event.
func (m *ownMetrics) begin() {
	for _, result := range []string{"changed", "unchanged", "failed"} {
		m.applies.WithLabelValues(result)
	}
	for _, kind := range []string{"added", "changed", "removed"} {
		m.changes.WithLabelValues(kind)
		m.repaired.WithLabelValues(kind)
	}

	m.repaired.WithLabelValues("foreign")
	for _, doing := range []string{"apply", doingSettle} {
		m.conflicts.WithLabelValues(doing)
	}
	m.failures.WithLabelValues("apply", dataplane.PhaseCommit.String())
}

// applied counts an apply. The first apply that reads the kernel counts as an adoption.
func (m *ownMetrics) applied(r *dataplane.Result, first bool) {
	result := "unchanged"
	if r.Stats.Messages > 0 {
		result = "changed"
	}
	m.applies.WithLabelValues(result).Inc()
	m.apply.Observe(r.Duration.Seconds())
	m.phases(r.Phases)
	m.sent(r.Backend, r.Stats)
	count(m.changes, r.Counts)
	count(m.repaired, r.Repaired)
	m.repaired.WithLabelValues("foreign").Add(float64(len(r.Drift)))
	if r.IsRepair() {
		m.repairs.Inc()
	}
	if r.Observed {
		m.readings.Inc()
	}
	if first {
		m.found = new(found(r))
	}
}

// found returns the number of frontends that an apply found in the kernel. A second step may find
// obsolete frontends.
func found(r *dataplane.Result) int {
	n := r.Changes.Old.Len()
	if r.Rest != nil {
		n += r.Rest.Old.Len() - r.Rest.New.Len()
	}
	return n
}

// phases adds the time of each phase.
func (m *ownMetrics) phases(all dataplane.Phases) {
	for phase, d := range all {
		if d > 0 {
			m.phase.WithLabelValues(dataplane.Phase(phase).String()).Observe(d.Seconds())
		}
	}
}

func (m *ownMetrics) sent(backend string, s backends.Stats) {
	m.messages.WithLabelValues(backend).Add(float64(s.Messages))
	m.bytes.WithLabelValues(backend).Add(float64(s.Bytes))
	m.elements.WithLabelValues(backend).Add(float64(s.Elements))
}

func count(c *prometheus.CounterVec, n servicemodel.Counts) {
	c.WithLabelValues("added").Add(float64(n.Added))
	c.WithLabelValues("changed").Add(float64(n.Changed))
	c.WithLabelValues("removed").Add(float64(n.Removed))
}

func (m *ownMetrics) update(s *dataplane.Status, endpoints int, t *tally) {
	m.info.set(1, s.Backend)
	running, pending := 0.0, 0.0
	if s.Running {
		running = 1
	}
	if s.Pending() {
		pending = time.Since(s.PendingSince).Seconds()
	}
	m.running.set(running)
	m.pending.set(pending)
	m.succeeded.setTime(s.Succeeded)
	m.failed.setTime(s.Failed)
	m.settle.setTime(s.Settle)
	refused := 0
	for _, r := range s.Refused {
		if len(r.Endpoints) == 0 {
			refused++
		}
	}

	m.refused.set(float64(refused))
	m.claims.set(float64(len(s.Conflicts)))
	m.warnings.set(float64(s.Warnings.Len()))
	m.wantedServices.set(float64(s.State.Len()))
	m.wantedEndpoints.set(float64(endpoints))
	m.heldServices.set(float64(len(t.services)))
	m.heldFrontends.set(float64(t.frontends))
	m.heldEndpoints.set(float64(t.slots))
	if m.found != nil {
		m.adopted.set(float64(*m.found))
	}
}

// serves sets the gauge of services; v is nil if the kernel's contents are unknown.
func (m *ownMetrics) serves(v *health.Serving) {
	if v == nil {
		return
	}
	for outcome, n := range v.Outcomes() {
		m.services.set(float64(n), outcome)
	}
}
