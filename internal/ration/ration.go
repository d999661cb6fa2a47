// Package ration bounds how often something is done that costs time: some times at once, and then so that
// it takes a small share of the time.
package ration

import "time"

const (
	// burst is how often something may be done at once.
	burst = 8
	// perSecond is what is given each second: something short may be done so often, without end.
	perSecond = 1
	// share bounds the time taken, without end: a twentieth.
	share = 20
)

// Ration is what may be spent. The zero value has not been used.
type Ration struct {
	used float64
	at   time.Time
}

// Allow reports whether it may be done now.
func (r *Ration) Allow(now time.Time) bool {
	if !r.at.IsZero() {
		r.used = max(0, r.used-perSecond*now.Sub(r.at).Seconds())
	}
	r.at = now
	return r.used <= burst-1
}

// Spend notes that it was done, and how long it took.
func (r *Ration) Spend(took time.Duration) { r.used += max(1, share*took.Seconds()) }
