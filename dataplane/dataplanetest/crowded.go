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
	apply := func(what string) rawnltest.Count {
		faults.Count()
		if _, err := e.Apply(t.Context(), f.to); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		f.from, f.to = f.to, f.from
		c := faults.Count()
		t.Logf("%s: %+v", what, c)
		return c
	}
	both := func(what string) (sum rawnltest.Count) { // there and back
		for range 2 {
			c := apply(what)
			sum.Sends, sum.Receives = sum.Sends+c.Sends, sum.Receives+c.Receives
			sum.Sent, sum.Received = sum.Sent+c.Sent, sum.Received+c.Received
		}
		return sum
	}
	both("at first")
	both("a change") // by now there are sets for all numbers of slots
	alone := both("a change")
	if err := addChains(ns, tables); err != nil {
		t.Fatal(err)
	}
	both("after the chains came")
	beside := both("a change")
	heard := beside.Received
	if beside.Received = alone.Received; beside != alone || heard > 2*alone.Received {
		beside.Received = heard
		t.Errorf("a change takes %+v alone, and %+v beside the chains", alone, beside)
	}
	if err := f.holds(context.WithoutCancel(t.Context()), f.from); err != nil {
		t.Error(err)
	}
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
