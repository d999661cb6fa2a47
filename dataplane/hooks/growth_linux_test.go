package hooks

import (
	"fmt"
	"testing"

	"github.com/kernlb/kernlb/internal/test/growth"
)

// If chains jump to one another in many ways, each chain is examined once.
//
//nolint:paralleltest // it measures
func TestCostsAreLinear(t *testing.T) {
	growth.Linear(t, 1<<13, func(n int) reading {
		d := reading{leads: map[place][]string{}, drops: map[place][]Rule{}}
		for i := range n {
			at := place{1, "fw", fmt.Sprint(i)}
			d.leads[at] = []string{fmt.Sprint(i + 1), fmt.Sprint(i + 2), "0"}
			d.drops[at] = []Rule{{Chain: at.chain, Text: "drop"}}
		}

		return d
	}, func(d reading) { d.from(place{1, "fw", "0"}) })
}
