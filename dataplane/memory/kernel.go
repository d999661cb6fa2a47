package memory

import (
	"slices"
	"sync"

	"github.com/kernlb/kernlb/servicemodel"
)

// Kernel is a simulated kernel to which a [Backend] writes. It outlives its backends, as a kernel
// outlives a program, and several backends can share it. Its methods change it as other programs
// change a kernel. They are safe for concurrent use. The zero Kernel is empty and ready to use.
type Kernel struct {
	mu         sync.Mutex
	table      *servicemodel.Table
	drift      []string
	generation uint64 // counts all writes
	version    uint64 // counts the writes of backends, and the flushes
	broken     uint64 // the generation of the last damage to the skeleton
}

// Table returns the kernel's content, which has no health checks. Nil is an empty table.
func (k *Kernel) Table() *servicemodel.Table {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.table
}

// Drift returns the lines that describe the drift in the kernel.
func (k *Kernel) Drift() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.drift)
}

// Touch simulates a foreign commit that changes none of our objects: backends report it as Touched.
func (k *Kernel) Touch() { k.change(func() {}) }

// Flush simulates a foreign commit that deletes everything: backends report it as Broken.
func (k *Kernel) Flush() {
	k.change(func() {
		k.table, k.drift, k.broken = nil, nil, k.generation
		k.version++
	})
}

// Lose simulates a foreign commit that deletes one frontend but not its pools. It reports whether
// the frontend existed. Backends report it as Touched.
func (k *Kernel) Lose(key servicemodel.FrontendKey) bool {
	var found bool
	k.change(func() {
		f := k.table.Frontend(key)
		if found = f != nil; found {
			k.table = k.table.Apply(&servicemodel.ChangeSet{
				Frontends: []servicemodel.Change[servicemodel.Frontend]{{Old: f}}})
		}
	})

	return found
}

// AddDrift simulates a foreign commit that adds drift, described by one line each. Backends report
// it as Touched, Observe reports the lines, and the next commit removes them.
func (k *Kernel) AddDrift(lines ...string) {
	k.change(func() { k.drift = slices.Concat(k.drift, lines) })
}

func (k *Kernel) change(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.generation++
	f()
}
