package metrics

import (
	"context"
	"errors"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

func (c *Collector) observe(_ context.Context, ev dataplane.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch ev := ev.(type) {
	case dataplane.Applied:
		c.applied(ev.Result, !c.begun)
	case dataplane.Switched:
		c.own.switches.WithLabelValues(ev.To).Inc()
		c.proxy.begin(ev.To)
		if ev.Changes != nil {
			c.applied(ev.Result, true)
		} else { // no state is wanted
			c.tally, c.asked = tally{}, servicemodel.State{}
		}
	case dataplane.CleanedUp:
		c.own.phases(ev.Phases)
		c.own.sent(ev.Backend, ev.Stats)
		c.tally, c.asked = tally{}, servicemodel.State{}
	case dataplane.Failed:
		c.failed(&ev)
	case dataplane.Settled:
		c.own.phases(dataplane.Phases{dataplane.PhaseSettle: ev.Duration})
		c.cleanedFlows()
	case dataplane.Refused:
		c.own.refusals.Inc()
	case dataplane.RepairDelayed:
		c.own.delays.Inc()
	case dataplane.WriteConflict:
		c.own.conflicts.WithLabelValues(ev.Doing).Inc()
	case dataplane.WatchFailed:
		c.own.watchFailures.Inc()
	}
}

// applied counts a successful apply. adopts says that the apply started from contents that an
// earlier program left in the kernel.
func (c *Collector) applied(r *dataplane.Result, adopts bool) {
	services, endpoints, _ := r.State.Since(c.asked)
	c.proxy.applied(r, services, endpoints)
	c.own.applied(r, adopts)
	c.begun, c.asked, c.revision, c.at = true, r.State, r.Revision, time.Now()
	c.tally.follow(r.Changes)
	c.tally.follow(r.Rest)
	c.programmed()
	c.cleanedFlows()
}

// failed counts a failure. The end of the program is not a failure.
func (c *Collector) failed(ev *dataplane.Failed) {
	if errors.Is(ev.Err, context.Canceled) {
		return
	}
	var took time.Duration
	for _, d := range ev.Phases {
		took += d
	}
	c.proxy.failed(ev, took)
	if ev.Doing != doingSettle || ev.Revision == 0 { // otherwise Applied has reported that phase
		c.own.phases(ev.Phases)
	}
	c.own.failures.WithLabelValues(ev.Doing, ev.Phase.String()).Inc()
	if ev.Doing == "apply" || ev.Doing == "apply changes" {
		c.own.applies.WithLabelValues("failed").Inc()
		c.own.apply.Observe(took.Seconds())
	}

	c.cleanedFlows()
}

// cleanedFlows counts the work of the keeper of flows since the last call. The keeper has worked at
// most once since then, because it works only while the engine settles.
func (c *Collector) cleanedFlows() {
	if c.cfg.Flows == nil {
		return
	}
	now := c.cfg.Flows.Totals()
	if d := now.Duration - c.cleaned.Duration; d > 0 {
		c.proxy.observe(c.proxy.reconciled, d)
	}
	c.own.flowsDeleted.Add(float64(now.Deleted - c.cleaned.Deleted))
	c.own.flowsReset.Add(float64(now.Reset - c.cleaned.Reset))
	c.cleaned = now
}

// trigger is the time at which a change of a revision was triggered.
type trigger struct {
	revision dataplane.Revision
	at       time.Time
}

// Triggered reports when the changes in a revision's state were triggered. The collector measures
// the time from then until the changes are in the kernel
// (kubeproxy_network_programming_duration_seconds). In Kubernetes, an annotation of EndpointSlices
// contains this time:
//
//	source.Run(ctx, func(s servicemodel.State) {
//		collector.Triggered(engine.Set(s), source.Triggers()...)
//	})
func (c *Collector) Triggered(r dataplane.Revision, at ...time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range at {
		c.triggers = append(c.triggers, trigger{r, t})
	}
	c.programmed()
}

// programmed observes the triggers whose revision is in the kernel.
func (c *Collector) programmed() {
	waiting := c.triggers[:0]
	for _, t := range c.triggers {
		if t.revision > c.revision {
			waiting = append(waiting, t)
			continue
		}

		c.proxy.observe(c.proxy.programming, max(0, c.at.Sub(t.at))) // clocks differ
	}

	c.triggers = waiting
}
