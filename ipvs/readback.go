package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// adopt makes a reading what is known of the kernel, and returns it as a table: the frontends whose
// virtual servers are what their records say. All else is drift, and damage that the next commit
// repairs. The index and the damage of the reading are filled in here. want is what the kernel is
// to hold, nil if that is not known.
func (pl *planner) adopt(o observed, drift []string, want *servicemodel.Table) (
	*dataplane.Observation, error) {
	comp := &o.companion
	c := servicemodel.Contents{Rules: comp.rules, ClusterIPs: comp.clusterIPs,
		Hairpins: comp.hairpins}
	o.index, o.damage = newIndex(), damage{}
	frontends, err := pl.readFrontends(&o, &c, want)
	if err != nil {
		return nil, err
	}
	drift = append(drift, frontends...)
	o.indexRecords()
	if len(comp.records) > 0 { // else nothing depends on them
		if !slices.Equal(nodePortAddrs(o.addresses.node, c.Rules), comp.addrs) {
			drift = append(drift, "the node's addresses have changed")
		}
		drift = append(drift, pl.networkDrift(&o)...)
	}
	device := pl.deviceDrift(&o)
	o.damage.addresses = len(device) > 0
	t, err := servicemodel.NewTable(c)
	if err != nil {
		return nil, err
	}
	o.table = t
	pl.have = o
	return &dataplane.Observation{Table: t, Drift: append(drift, device...),
		OtherLayout: comp.other}, nil
}

// indexRecords notes the firewall marks that are taken, by our records and by virtual servers of
// others, and how many frontends are at each address.
func (o *observed) indexRecords() {
	for k, r := range o.companion.records {
		o.index.marks[r.mark] = true
		if !k.NodePort() {
			o.index.users[k.Addr]++
		}
	}
	for k := range o.foreign {
		o.index.marks[k.FWMark] = true
	}
	delete(o.index.marks, 0)
}

// networkDrift returns in what the rules, the routes and the tunables are not as they should be.
func (pl *planner) networkDrift(o *observed) []string {
	drift := slices.Clone(o.unrouted)
	for _, name := range slices.Sorted(maps.Keys(pl.tunables)) {
		if now, want := o.tunables[name], pl.tunables[name]; now != want {
			drift = append(drift, fmt.Sprintf("%s is %s, not %s", tunableText(name), now, want))
		} else if _, known := o.companion.tunables[name]; !known {
			drift = append(drift, fmt.Sprintf("what %s was is not recorded", tunableText(name)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.companion.tunables)) {
		if pl.tunables[name] == "" {
			drift = append(drift, tunableText(name)+" is set, and need not be")
		}
	}
	return drift
}

// deviceDrift returns in what the device and the bound addresses differ from what the records say.
// Devices that the instance made under other names are damage.
func (pl *planner) deviceDrift(o *observed) (drift []string) {
	name, a := pl.cfg.Device, &o.addresses
	for _, made := range o.devices {
		if made != name {
			o.damage.devices = append(o.damage.devices, made)
			drift = append(drift, fmt.Sprintf("device %s is not the one that is configured", made))
		}
	}
	switch {
	case name == "" || len(o.index.users) == 0:
	case a.ifindex == 0:
		drift = append(drift, fmt.Sprintf("device %s is missing", name))
	case !a.up:
		drift = append(drift, fmt.Sprintf("device %s is down", name))
	}
	for _, b := range a.bound {
		if b.ifindex != a.ifindex || o.index.users[b.addr] == 0 || a.othersHave(b.addr) {
			drift = append(drift, fmt.Sprintf("address %v is bound to device %s", b.addr, b.dev))
		}
	}
	if name == "" {
		return drift
	}
	for _, addr := range slices.SortedFunc(maps.Keys(o.index.users), netip.Addr.Compare) {
		if _, bound := a.onDevice(addr); !bound && !a.othersHave(addr) {
			drift = append(drift, fmt.Sprintf("address %v is not bound to device %s", addr, name))
		}
	}
	return drift
}
