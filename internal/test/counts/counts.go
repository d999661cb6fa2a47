// Package counts compares the cost of work with a checked-in file, counts.txt: allocations, memory
// that stays in use, and traffic between a backend and the kernel. It never measures time. A cost
// that grows by more than 2 % fails the test of its row until the file has the new cost.
package counts

import (
	"runtime"
	"runtime/debug"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/fleet"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

// Cost is the cost of some work.
type Cost struct {
	Allocations, Bytes float64
	// Messages and Sent are netlink messages to the kernel and their bytes. Asked are the objects
	// in its answers: each element of a set, and each other object.
	Messages, Sent, Asked float64
	// Stays is the number of bytes of the heap that stay in use.
	Stays float64
}

// The numbers of fleets, and of changes of each kind, for the averages. The trees of the model have
// random shapes, which differ between fleets. So if a figure differs from the file, more fleets are
// measured, up to a number of rounds.
const (
	fleets  = 10
	changes = 20
	rounds  = 4
)

// of is the i-th fleet.
func of(i int) fleet.Fleet {
	return fleet.Fleet{First: 1000 * i, Services: 200, Endpoints: 10}
}

// start returns the state of a fleet on a node.
func start(f fleet.Fleet) servicemodel.State {
	s := servicemodel.State{}.WithNode(servicemodel.Node{Name: "node-7"})
	return f.Add(s, 0, f.Services)
}

// Backend compares the costs of an engine on a backend with the file. open opens the backend, with
// wrap as [rawnl.Config.Wrap], on a kernel without services.
func Backend(t *testing.T, name string,
	open func(t *testing.T, wrap func(rawnl.Socket) rawnl.Socket) backends.Backend) {
	t.Helper()
	comparable(t)
	if r := nft.Running(); r.Major < 6 || r.Major == 6 && r.Minor < 16 {
		t.Skip("older kernels are asked more than Linux 6.16")
	}
	w := &wire{}
	var e *dataplane.Engine
	var b backends.Backend
	opened := func() {
		b = open(t, w.wrap)
		e = dataplane.New(b, &dataplane.Config{Strict: true})
	}

	apply := func(s servicemodel.State) servicemodel.State {
		must.OK(e.Apply(t.Context(), s))(t)
		return s
	}

	m := meter{wire: w}
	m.compare(t, name, func(f fleet.Fleet) {
		s := start(f)
		opened()
		m.count("full sync", true, func() { apply(s) })
		s = apply(f.Replaced(s, 0)) // buffers grow
		for j := range changes {
			next := f.Replaced(s, j+1)
			m.count("one endpoint", false, func() { s = apply(next) })
		}

		for j := range changes {
			next := f.Scaled(s, j)
			m.count("scaling", false, func() { s = apply(next) })
		}

		for j := range changes {
			next := f.OneMore(s, j)
			m.count("one service", false, func() { s = apply(next) })
		}

		m.count("nothing", false, func() { apply(s) })
		require.NoError(t, b.Close())

		opened()
		m.count("adoption", true, func() { apply(s) })
		must.OK(e.Cleanup(t.Context()))(t)
		require.NoError(t, b.Close())
	})
}

// Model compares the costs of states and tables with the file.
func Model(t *testing.T) {
	comparable(t)
	m := meter{}
	m.compare(t, "model", func(f fleet.Fleet) {
		var s servicemodel.State
		m.count("state", true, func() { s = start(f) })
		var table *servicemodel.Table
		resolve := func(s servicemodel.State) {
			table = must.OK(servicemodel.Resolve(table, s))(t)
		}
		m.count("table", true, func() { resolve(s) })
		m.count("difference", false, func() { servicemodel.Diff(nil, table) })
		for j := range changes {
			m.count("state, one endpoint", false, func() { s = f.Replaced(s, j) })
			old := table
			m.count("table, one endpoint", false, func() { resolve(s) })
			m.count("difference, one endpoint", false, func() { servicemodel.Diff(old, table) })
		}

		runtime.KeepAlive(s)
	})
}

// comparable makes costs the same on all machines, or skips the test.
func comparable(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: the race detector allocates, too")
	}

	// Backends use a connection for each processor.
	was := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(was) })
}

// meter adds up costs.
type meter struct {
	wire *wire
	rows []*measured
}

// measured is a row with the sum of its costs.
type measured struct {
	Row
	n float64
}

// row returns the row of a name.
func (m *meter) row(name string) *measured {
	for _, r := range m.rows {
		if r.Name == name {
			return r
		}
	}

	r := &measured{Row: Row{Name: name}}
	m.rows = append(m.rows, r)
	return r
}

// compare measures fleets, and compares the averages with the file, in which the names of rows
// begin with a group.
func (m *meter) compare(t *testing.T, group string, measure func(fleet.Fleet)) {
	t.Helper()
	file := openFile(t, group)
	for round := range rounds {
		for i := range fleets {
			measure(of(round*fleets + i))
		}
		if rows := m.averages(group); file.accepts(rows) || round == rounds-1 {
			file.compare(rows)
			return
		}
	}
}

// averages returns the average of each row.
func (m *meter) averages(group string) (rows []Row) {
	for _, r := range m.rows {
		average := Row{group + ": " + r.Name, r.Cost}
		for _, c := range columns {
			*c.of(&average.Cost) /= r.n
		}
		rows = append(rows, average)
	}

	return rows
}

// count adds the cost of some work to a row. Only with stays, it measures the heap that stays in
// use.
func (m *meter) count(row string, stays bool, work func()) {
	sum := m.row(row)
	sum.n++
	var held uint64
	if stays {
		held = heap()
	}
	m.wire.reset()

	var before, after runtime.MemStats
	off := debug.SetGCPercent(-1) // a collection would empty pools of buffers
	runtime.ReadMemStats(&before)
	work()
	runtime.ReadMemStats(&after)
	debug.SetGCPercent(off)

	w := m.wire.total()
	sum.Cost.Allocations += float64(after.Mallocs-before.Mallocs) - w.Allocations
	sum.Cost.Bytes += float64(after.TotalAlloc-before.TotalAlloc) - w.Bytes
	sum.Cost.Messages += w.Messages
	sum.Cost.Sent += w.Sent
	sum.Cost.Asked += w.Asked
	if stays {
		sum.Cost.Stays += float64(heap()) - float64(held)
	}
}

// heap returns the number of bytes of the heap in use.
func heap() uint64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.GC() // pools are empty only after the second one
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// wire counts the traffic between a backend and its kernels.
type wire struct {
	mu   sync.Mutex
	cost Cost
}

func (w *wire) reset() {
	if w != nil {
		w.cost = Cost{}
	}
}

func (w *wire) total() Cost {
	if w == nil {
		return Cost{}
	}
	return w.cost
}
