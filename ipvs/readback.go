package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// adopt makes a reading the known state of the kernel, and returns it as a table. The table has the
// frontends whose virtual servers agree with their records. Everything else is drift, and damage
// that the next commit repairs. adopt fills in the index and the damage of the reading.
func (pl *planner) adopt(o observed, drift []string) (*backends.Observation, error) {
	comp := &o.companion
	c := servicemodel.Contents{Rules: comp.rules, ClusterIPs: comp.addrs[setClusterIPs],
		Hairpins: comp.addrs[setHairpins]}
	o.index, o.damage = newIndex(), damage{}
	frontends, err := pl.readFrontends(&o, &c)
	if err != nil {
		return nil, err
	}
	drift = append(drift, frontends...)
	for k, r := range comp.records {
		for _, mark := range r.marks() {
			o.index.marks[mark] = true
		}
		if !k.NodePort() {
			o.index.users[k.Addr]++
		}
	}

	for k := range o.foreign { // other programs' virtual servers use marks, too
		o.index.marks[k.FWMark] = true
	}
	delete(o.index.marks, 0)
	if len(comp.records) > 0 { // otherwise nothing depends on them
		if !slices.Equal(nodePortAddrs(o.addresses.node, c.Rules), comp.addrs[setNodeAddrs]) {
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
	return &backends.Observation{Table: t, Drift: append(drift, device...),
		OtherLayout: comp.other}, nil
}

// networkDrift lists the faults of the rules, the routes and the tunables.
func (pl *planner) networkDrift(o *observed) []string {
	drift := o.routingDrift()
	for _, name := range slices.Sorted(maps.Keys(pl.tunables)) {
		if now, want := o.tunables.Now[name], pl.tunables[name]; now != want {
			drift = append(drift, fmt.Sprintf("%s is %s, not %s", sysctls.Text(name), now, want))
		} else if _, known := o.companion.tunables[name]; !known {
			drift = append(drift, fmt.Sprintf("what %s was is not recorded", sysctls.Text(name)))
		}
	}

	for _, name := range slices.Sorted(maps.Keys(o.companion.tunables)) {
		if pl.tunables[name] == "" {
			drift = append(drift, sysctls.Text(name)+" is set, and need not be")
		}
	}

	return drift
}

// routingDrift lists the faults of the rules and the routes.
func (o *observed) routingDrift() (drift []string) {
	rules := o.rules()
	for i, f := range nft.Families {
		switch {
		case f.ServedBy(&rules):
			drift = append(drift, o.unrouted[i]...)
		case o.routed[i]:
			drift = append(drift, fmt.Sprintf("a rule or a route leads %v packets to IPVS, and "+
				"the node does not serve them", f.Model))
		}
	}

	return drift
}

// leads reports whether an instance with these rules delivers packets of a family to IPVS: the node
// serves the family, and the kernel has it.
func (o *observed) leads(f *nft.Family, r *servicemodel.Rules) bool {
	return f.ServedBy(r) && (f == nft.IPv4 || o.ipv6)
}

// deviceDrift lists the differences of the device and the bound addresses from the records. Devices
// that the instance created under other names are damage.
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
