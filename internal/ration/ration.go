// Package ration bounds how often something that costs time is done: a few times at once, and after
// that for a small share of the time.
package ration

import "time"

// Ration is what may be spent: tokens, of which each use takes one, and more if it takes long. One
// comes back each second. The zero Ration allows nothing. It is not safe for use by several
// goroutines.
type Ration struct {
	burst int
	share int
	used  float64
	at    time.Time
}

// New returns a ration that allows something burst times at once if it is short, and then once a
// second. What takes long it allows for one part in share of the time.
func New(burst, share int) Ration { return Ration{burst: burst, share: share} }

// Allow reports whether it may be done now.
func (r *Ration) Allow(now time.Time) bool {
	if !r.at.IsZero() {
		r.used = max(0, r.used-now.Sub(r.at).Seconds())
	}
	r.at = now
	return r.used <= float64(r.burst)-1
}

// Spend notes that it was done, and how long it took.
func (r *Ration) Spend(took time.Duration) { r.used += max(1, float64(r.share)*took.Seconds()) }
