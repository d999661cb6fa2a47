package dataplane

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Repairs are undone if five or more follow each other, each within a minute, and the last one is
// not older than that.
func TestRepairsThatAreUndone(t *testing.T) {
	t.Parallel()
	for range 100 {
		var u Undone
		now, row := time.Now().Add(-time.Hour), 0
		for range 40 {
			gap := rand.N(75 * time.Second)
			now = now.Add(gap)
			if row++; gap > undoneFor {
				row = 1
			}
			u.repaired(now)
			require.Equal(t, row >= repairBurst, u.current(now.Add(undoneFor)) != nil, "%v", u)
			require.Nil(t, u.current(now.Add(undoneFor+1)))
			require.Equal(t, row, u.Repairs)
		}
	}

	require.Empty(t, (*Undone)(nil).String())
	u := &Undone{Repairs: 7, Since: time.Now().Add(-time.Minute)}
	require.Equal(t, "another program keeps undoing repairs: 7 in the last 1m0s", fmt.Sprint(u))
}
