package dataplanetest

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

// crowd is the number of another program's chains in each table.
const crowd = 50_000

// crowded puts 50,000 chains of another program into each of some tables, such as "ip filter". It
// requires that a change of services then sends the kernel exactly the same requests as without the
// chains, and receives nothing about the chains. Only the rate-limited check after foreign commits
// may see them.
func (o *Obstacles) crowded(t *testing.T, under FaultyBackend) {
	f, faults := newFaulted(t, under), rawnltest.NewFaults()
	e := dataplane.New(opened(under.openFaulty(f.ns, faults))(t), nil)
	f.thereAndBack(e, faults, "at first")
	f.thereAndBack(e, faults, "a change") // by now there are sets for all numbers of slots
	alone := f.thereAndBack(e, faults, "a change")
	var chains bytes.Buffer
	for _, table := range o.Crowded {
		fmt.Fprintf(&chains, "add table %s\n", table)
		for i := range crowd {
			fmt.Fprintf(&chains, "add chain %s foreign-%d\n", table, i)
		}
	}

	ok(runIn(t.Context(), f.ns, &chains, "nft", "-f", "-"))(t)
	f.thereAndBack(e, faults, "after the chains came")
	beside := f.thereAndBack(e, faults, "a change")
	heard := beside.Received
	beside.Received = alone.Received
	if beside != alone || heard > 2*alone.Received {
		beside.Received = heard
		t.Errorf("a change takes %+v alone, and %+v beside the chains", alone, beside)
	}

	must(t, f.holds(t.Context(), f.from))
}

// thereAndBack applies one state and then the other, and returns the requests of both to the
// kernel.
func (f *faulted) thereAndBack(e *dataplane.Engine, faults *rawnltest.Faults, what string) (
	sum rawnltest.Count) {
	for range 2 {
		faults.Count()
		ok(settled(e.Apply(f.t.Context(), f.to)))(f.t)
		f.from, f.to = f.to, f.from
		c := faults.Count()
		f.t.Logf("%s: %+v", what, c)
		sum.Sends, sum.Receives = sum.Sends+c.Sends, sum.Receives+c.Receives
		sum.Sent, sum.Received = sum.Sent+c.Sent, sum.Received+c.Received
	}

	return sum
}
