package dataplane_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/test/law"
)

// inMemoryLaw is a law about kernels in memory.
var inMemoryLaw = law.Test{Sequences: 1000,
	New: func(*testing.T) func(*testing.T, *rand.Rand) *law.Machine { return machineInMemory }}

func machineInMemory(_ *testing.T, r *rand.Rand) *law.Machine {
	kernels := [2]*memory.Kernel{{}, {}}
	hints := r.IntN(2) == 0
	m := &law.Machine{
		TouchedOnce: r.IntN(2) == 0,
		Open: func(at int) (backends.Backend, error) {
			b := memory.New(kernels[at])
			b.HeedHints(hints)
			return b, nil
		},
		Harms: []law.Harm{
			{Name: "flush", Do: func(at int, _ *rand.Rand) { kernels[at].Flush() }},
			{Name: "lose a frontend", Settings: true, Do: func(at int, _ *rand.Rand) {
				for f := range kernels[at].Table().Frontends() {
					kernels[at].Lose(f.Key)
					break
				}
			}},
			{Name: "drift", Settings: true, Do: func(at int, _ *rand.Rand) {
				kernels[at].AddDrift("a chain of nobody")
			}}},
		Touch: func(at int) { kernels[at].Touch() },
	}
	if r.IntN(2) == 0 {
		m.Part = func(b backends.Backend) backends.Backend {
			return &partial{Backend: b.(*memory.Backend)}
		}
	}

	return m
}

func TestWhatAnEngineAcceptedKeepsItsMeaning(t *testing.T) { law.Engines(t, inMemoryLaw) }

func TestWhatPartsHoldKeepsItsMeaning(t *testing.T) { law.Parts(t, inMemoryLaw) }
