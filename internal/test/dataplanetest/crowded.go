package dataplanetest

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

// crowd is the number of another program's chains in each table.
const crowd = 50_000

// Crowded puts 50,000 chains of another program into each of some tables, such as "ip filter". It
// requires that a change of services then asks the kernel exactly the same as without the chains,
// and receives nothing about them. The rate-limited check after foreign commits may see them.
func Crowded(t *testing.T, under FaultyBackend, tables ...string) {
	ns, faults := under.namespace(t), rawnltest.NewFaults()
	b := opened(t, func(netns int) (dataplane.Backend, error) {
		return under.OpenFaulty(netns, faults)
	}, ns)
	e := dataplane.New(b, nil)
	f := &faulted{t: t, under: under, ns: ns}
	f.from, f.to = faultedStates()
	f.thereAndBack(e, faults, "at first")
	f.thereAndBack(e, faults, "a change") // by now there are sets for all numbers of slots
	alone := f.thereAndBack(e, faults, "a change")
	must(t, addChains(t.Context(), ns, tables))
	f.thereAndBack(e, faults, "after the chains came")
	beside := f.thereAndBack(e, faults, "a change")
	heard := beside.Received
	if beside.Received = alone.Received; beside != alone || heard > 2*alone.Received {
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
		if _, err := e.Apply(f.t.Context(), f.to); err != nil {
			f.t.Fatalf("%s: %v", what, err)
		}
		f.from, f.to = f.to, f.from
		c := faults.Count()
		f.t.Logf("%s: %+v", what, c)
		sum.Sends, sum.Receives = sum.Sends+c.Sends, sum.Receives+c.Receives
		sum.Sent, sum.Received = sum.Sent+c.Sent, sum.Received+c.Received
	}
	return sum
}

// addChains makes a crowd of chains in each of the tables.
func addChains(ctx context.Context, ns *netnstest.NS, tables []string) error {
	var text bytes.Buffer
	for _, table := range tables {
		fmt.Fprintf(&text, "add table %s\n", table)
		for i := range crowd {
			fmt.Fprintf(&text, "add chain %s foreign-%d\n", table, i)
		}
	}
	_, err := runIn(ctx, ns, &text, "nft", "-f", "-")
	return err
}
