package metrics

import (
	"github.com/kernlb/kernlb/servicemodel"
)

// tally counts the objects of a table. It follows the changes of the table, so that neither an
// apply nor a scrape counts the whole table.
type tally struct {
	table     *servicemodel.Table
	services  map[servicemodel.Name]int // number of frontends
	frontends int
	slots     int
	// dropping counts the frontends that drop because the traffic policy Local finds no endpoint on
	// the node, by service port. noLocal counts these service ports.
	dropping map[droppingPort]int
	noLocal  map[localPolicy]int
}

// localPolicy is a traffic policy of a family, "internal" or "external".
type localPolicy struct {
	family servicemodel.Family
	policy string
}

// droppingPort is a service port whose clients are dropped under a traffic policy.
type droppingPort struct {
	port servicemodel.PortName
	localPolicy
}

// follow updates the counts after a change.
func (t *tally) follow(c *servicemodel.ChangeSet) {
	if c == nil || t.services != nil && c.New == t.table {
		return
	}
	if t.services == nil || c.Old != t.table {
		*t = tally{services: map[servicemodel.Name]int{}, dropping: map[droppingPort]int{},
			noLocal: map[localPolicy]int{}}
		for f := range c.New.Frontends() {
			t.frontend(f, 1)
		}
		for p := range c.New.Pools() {
			t.slots += len(p.Slots)
		}
		t.table = c.New
		return
	}

	for _, f := range c.Frontends {
		t.frontend(f.Old, -1)
		t.frontend(f.New, 1)
	}

	for _, p := range c.Pools {
		if p.Old != nil {
			t.slots -= len(p.Old.Slots)
		}
		if p.New != nil {
			t.slots += len(p.New.Slots)
		}
	}

	t.table = c.New
}

// frontend counts an added (n is 1) or removed (n is -1) frontend.
func (t *tally) frontend(f *servicemodel.Frontend, n int) {
	if f == nil {
		return
	}
	t.frontends += n
	add(t.services, f.Service.Name, n)
	if f.External != servicemodel.Drop {
		return
	}

	// A frontend drops only under traffic policy Local. For cluster IPs, the internal policy
	// counts.
	port := droppingPort{f.Service, localPolicy{f.Key.Family(), "external"}}
	if f.Kind == servicemodel.ClusterIP {
		port.policy = "internal"
	}
	was := min(t.dropping[port], 1)
	add(t.dropping, port, n)
	add(t.noLocal, port.localPolicy, min(t.dropping[port], 1)-was)
}

// add adds to a count. It deletes a count of 0.
func add[K comparable](counts map[K]int, k K, n int) {
	if counts[k] += n; counts[k] == 0 {
		delete(counts, k)
	}
}
