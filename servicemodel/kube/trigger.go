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
	began time.Time // the creation of the tracker; older changes are ignored
	// waiting has the times that no state contains yet, by slice. If a slice changes twice, the
	// time of the first change is kept.
	waiting map[servicemodel.Name]time.Time
	given   []time.Time // the times that a state contains
}

// Triggers returns one time for each EndpointSlice whose change is in a state that [Tracker.State]
// returned since the last call of Triggers. The time comes from the annotation
// endpoints.kubernetes.io/last-change-trigger-time: a pod or Service changed at that time, and the
// control plane then wrote the slice. Triggers returns no times unless [Config.Triggers] is set.
// The network programming latency, a service level indicator of Kubernetes, is the duration from
// that time until the state is in the kernel. Package dataplane/metrics measures it.
func (t *Tracker) Triggers() []time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	given := t.triggers.given
	t.triggers.given = nil
	return given
}

// note records that a slice replaces another slice; either may be nil. A deleted slice has no
// trigger, and changes before the tracker was created are ignored.
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

// give records that a state contains all waiting changes.
func (t *triggers) give() {
	t.given = slices.AppendSeq(t.given, maps.Values(t.waiting))
	clear(t.waiting)
}

// triggeredAt returns the time at which the last change of a slice was triggered, or zero if the
// slice does not contain it.
func triggeredAt(s *discoveryv1.EndpointSlice) time.Time {
	text := s.Annotations[corev1.EndpointsLastChangeTriggerTime]
	if text == "" {
		return time.Time{}
	}
	at, _ := time.Parse(time.RFC3339Nano, text) // zero if the text is not a time
	return at
}
