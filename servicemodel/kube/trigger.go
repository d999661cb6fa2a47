package kube

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kernlb/kernlb/servicemodel"
)

// triggers has the times at which changes of EndpointSlices were triggered.
type triggers struct {
	began time.Time // when the tracker was made; older changes do not count
	// waiting has the times that no state contains yet, by slice. If a slice changes twice, its
	// first change counts.
	waiting map[servicemodel.Name]time.Time
	given   []time.Time // the times that a state contains
}

// Triggers returns the times of the changes that came with the states which [Tracker.State]
// returned since the last call, one for each EndpointSlice that changed. The time comes from the
// annotation endpoints.kubernetes.io/last-change-trigger-time. It is the time of the change of a
// pod or Service that made the control plane write the slice. Triggers returns none unless
// [Config.Triggers] is set. The latency of network programming, an objective of Kubernetes, lasts
// from that time until the kernel holds the state. Package dataplane/metrics measures it.
func (t *Tracker) Triggers() []time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	given := t.triggers.given
	t.triggers.given = nil
	return given
}

// note notes that a slice replaces another one; either may be nil. A deleted slice has no trigger,
// and changes before the tracker was made do not count.
func (t *triggers) note(n servicemodel.Name, old, new *slice) {
	if new == nil {
		delete(t.waiting, n)
		return
	}

	if !new.triggered.After(t.began) || old != nil && !new.triggered.After(old.triggered) {
		return
	}
	if _, waits := t.waiting[n]; !waits {
		t.waiting[n] = new.triggered
	}
}

// give notes that a state contains all waiting changes.
func (t *triggers) give() {
	t.given = slices.AppendSeq(t.given, maps.Values(t.waiting))
	clear(t.waiting)
}

// triggeredAt returns when the last change of a slice was triggered; zero if the slice does not say
// so.
func triggeredAt(s *discoveryv1.EndpointSlice) time.Time {
	text := s.Annotations[corev1.EndpointsLastChangeTriggerTime]
	if text == "" {
		return time.Time{}
	}
	at, _ := time.Parse(time.RFC3339Nano, text) // zero, if it is no time
	return at
}
