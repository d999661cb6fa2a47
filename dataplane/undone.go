package dataplane

import (
	"cmp"
	"fmt"
	"time"
)

// Undone describes repairs that another program keeps undoing.
type Undone struct {
	// Program is the name of the program ([RepairUndone]). Empty means unknown.
	Program string `json:"program,omitempty"`
	// Repairs is the number of repairs from Since to Last, the time of the last repair.
	Repairs int       `json:"repairs"`
	Since   time.Time `json:"since"`
	Last    time.Time `json:"last"`
}

// undoneFor is the longest time between two repairs of which the second means that the first was
// undone.
const undoneFor = time.Minute

func (u *Undone) repaired(now time.Time) {
	if now.Sub(u.Last) > undoneFor {
		*u = Undone{Since: now}
	}
	u.Repairs, u.Last = u.Repairs+1, now
}

// current returns a copy, or nil if there were fewer than repairBurst repairs in a row, or if the
// last one is old. The same number of repairs makes the next one wait.
func (u *Undone) current(now time.Time) *Undone {
	if u.Repairs < repairBurst || now.Sub(u.Last) > undoneFor {
		return nil
	}
	present := *u
	return &present
}

// String returns "nft keeps undoing repairs: 14 in the last 1m2s". It is empty for nil.
func (u *Undone) String() string {
	if u == nil {
		return ""
	}
	return fmt.Sprintf("%s keeps undoing repairs: %d in the last %v",
		cmp.Or(u.Program, "another program"), u.Repairs, time.Since(u.Since).Round(time.Second))
}
