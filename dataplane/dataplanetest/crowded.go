package dataplanetest

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"testing"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/rawnl/rawnltest"
)

// crowd is how many chains somebody else has.
const crowd = 50_000

// Crowded puts 50,000 chains of somebody else into each of some tables, such as "ip filter", and
// requires that a change of services asks the kernel exactly what it asks without them, and does
// not hear of them. What is rationed, a look after somebody has committed, may hear of them.
func Crowded(t *testing.T, under FaultyBackend, tables ...string) {
	under.need(t)
	netnstest.Require(t)
	ns, err := netnstest.NewNS(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	faults := rawnltest.NewFaults()
	b, err := under.OpenFaulty(ns.Fd(), faults)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	e := dataplane.New(b, nil)
	f := &faulted{t: t, under: under, ns: ns}
	f.from, f.to = faultedStates()
	f.thereAndBack(e, faults, "at first")
	f.thereAndBack(e, faults, "a change") // by now there are sets for all numbers of slots
	alone := f.thereAndBack(e, faults, "a change")
	if err := addChains(ns, tables); err != nil {
		t.Fatal(err)
	}
	f.thereAndBack(e, faults, "after the chains came")
	beside := f.thereAndBack(e, faults, "a change")
	heard := beside.Received
	if beside.Received = alone.Received; beside != alone || heard > 2*alone.Received {
		beside.Received = heard
		t.Errorf("a change takes %+v alone, and %+v beside the chains", alone, beside)
	}
	if err := f.holds(context.WithoutCancel(t.Context()), f.from); err != nil {
		t.Error(err)
	}
}

// thereAndBack applies the one state and then the other, and returns what both asked of the kernel.
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
func addChains(ns *netnstest.NS, tables []string) error {
	var text bytes.Buffer
	for _, table := range tables {
		fmt.Fprintf(&text, "add table %s\n", table)
		for i := range crowd {
			fmt.Fprintf(&text, "add chain %s foreign-%d\n", table, i)
		}
	}
	return ns.Do(func() error {
		c := exec.Command("nft", "-f", "-")
		c.Stdin = &text
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
}
