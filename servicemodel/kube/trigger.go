package kube

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kernlb/kernlb/servicemodel"
)

// triggers are when changes of EndpointSlices were triggered.
type triggers struct {
	began time.Time // of the tracker: what is older was there before
	// waiting are those that no state has yet, by the slice. One that changes twice counts from the
	// first change.
	waiting map[servicemodel.Name]time.Time
	given   []time.Time // those that a state has
}

// Triggers returns when the changes were triggered that states have which [Tracker.State] returned
// since the last call, one for each EndpointSlice that changed, as the annotation
// endpoints.kubernetes.io/last-change-trigger-time says: the time of the change of a pod or Service
// that made the control plane write it. It returns none unless [Config.Triggers] is set. The time
// from then until the kernel holds the state is the latency of network programming, an objective of
// Kubernetes; package dataplane/metrics measures it.
func (t *Tracker) Triggers() []time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	given := t.triggers.given
	t.triggers.given = nil
	return given
}

// note notes that a slice came in the place of another one, of which either may be nil. What is
// deleted tells of no trigger, nor does what was there before the tracker.
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

// give notes that a state has all that is waiting.
func (t *triggers) give() {
	t.given = slices.AppendSeq(t.given, maps.Values(t.waiting))
	clear(t.waiting)
}

// triggeredAt returns when the last change of a slice was triggered; zero if it does not say so.
func triggeredAt(s *discoveryv1.EndpointSlice) time.Time {
	text := s.Annotations[corev1.EndpointsLastChangeTriggerTime]
	if text == "" {
		return time.Time{}
	}
	at, _ := time.Parse(time.RFC3339Nano, text) // zero, if it is no time
	return at
}
