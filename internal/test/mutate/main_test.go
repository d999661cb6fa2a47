//go:build unix

package main

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// All mutants of the sample compile together, and the survivors are the mutants that its test does
// not detect.
func TestSurvivorsAreWhatNoTestSees(t *testing.T) {
	t.Parallel()
	u, err := load("testdata/sample")
	require.NoError(t, err)
	survivors, killed := []string{}, []string{}

	// Overlapping mutants need separate draws.
	for rest := u.mutants; len(rest) > 0; rest = u.mutants {
		drawn := draw(len(rest), rand.New(rand.NewPCG(1, 1)), []*unit{u})[0]
		if len(drawn) == 0 {
			break // what is left does not compile
		}
		tests, err := newSuites([]*unit{u}, [][]*mutant{drawn})
		require.NoError(t, err)
		require.NoError(t, tests.try(drawn, []string{"testdata/sample"},
			func(m *mutant, killer string) {
				m.equivalent = true
				if killer == "" {
					survivors = append(survivors, m.key)
				} else {
					killed = append(killed, m.key)
				}
			}))

		require.NoError(t, os.RemoveAll(tests.tmp))
	}

	const file = "testdata/sample/sample.go "
	require.ElementsMatch(t, []string{
		file + "greater: a > b → a >= b",
		file + "search: true → false",
		file + "search: without steps[i] = true",
		file + "wait: d > 0 → d >= 0",
		file + "wait: 0 → 1",
	}, survivors)
	require.Contains(t, killed, file+"search: continue → break")
	require.Contains(t, killed,
		file+`search: return -1, errors.New("none of " + fmt.Sprint(len(steps))) → return -1, nil`)
	require.Len(t, killed, 9)
}
