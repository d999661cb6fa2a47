package wait

import "time"

// Budget limits the runs of an expensive action: a few times at once, and after that for a small
// share of the time. Each run uses one token, and more if it takes long. One token comes back each
// second. The zero Budget allows nothing. It is not safe for use by several goroutines.
type Budget struct {
	burst int
	share int
	used  float64
	at    time.Time
}

// NewBudget returns a budget for an action. If the action is short, the budget allows it burst
// times at once, and then once a second. If it takes long, the budget allows it to use 1/share of
// the time.
func NewBudget(burst, share int) Budget { return Budget{burst: burst, share: share} }

// Allow reports whether the action may run now.
func (r *Budget) Allow(now time.Time) bool {
	r.used = max(0, r.used-now.Sub(r.at).Seconds())
	r.at = now
	return r.used <= float64(r.burst)-1
}

// Spend notes that the action ran, with its duration.
func (r *Budget) Spend(took time.Duration) { r.used += max(1, float64(r.share)*took.Seconds()) }
