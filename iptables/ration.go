package iptables

import "time"

// ration bounds how often something is done that costs time, so that a neighbour that commits
// without end makes nobody slow: a share of the time that passes, and a number at once after a
// pause. The zero ration allows nothing. It is not safe for use by several goroutines.
type ration struct {
	// share: what took t is allowed once for each share times t that passes.
	share int
	// most is how many are allowed at once.
	most float64

	left float64       // how many are allowed now
	at   time.Time     // when left was right
	cost time.Duration // of the last
}

// take reports whether it is allowed now, and counts it.
func (r *ration) take(now time.Time) bool {
	if passed := now.Sub(r.at); r.cost > 0 {
		r.left = min(r.most, r.left+float64(passed)/float64(time.Duration(r.share)*r.cost))
	}
	if r.at = now; r.left < 1 {
		return false
	}
	r.left--
	return true
}

// costs notes how long the last took.
func (r *ration) costs(d time.Duration) { r.cost = max(d, time.Microsecond) }

// restart has what is allowed gather anew from now on, as it was done without being asked.
func (r *ration) restart(now time.Time, cost time.Duration) {
	r.left, r.at = 0, now
	r.costs(cost)
}
