package servicemodel

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

const (
	// slowStartMin is the shortest [Service.SlowStart]. With a step every 100 ms and weights in
	// twentieths, a weight is then within 5 % of the line.
	slowStartMin = 5 * time.Second
	slowStartMax = 24 * time.Hour
	// slowStartUnits is the smallest weight of an endpoint, so that the weight can rise in steps of
	// 5 %.
	slowStartUnits = 20
	// slowStartShare is the fraction of its weight with which an endpoint begins.
	slowStartShare = .1
	// slowStartStep is the shortest time between two steps of a table.
	slowStartStep = 100 * time.Millisecond
)

// ramps are the endpoints of a table that have only a fraction of their weight, see
// [Service.SlowStart]. The rest of a table does not depend on the time.
type ramps struct {
	pools   pmap.Map[PoolID, []growing, poolHash]
	stepped time.Time // when weights last changed because time passed
	next    time.Time // the time of the next change
}

// growing is an endpoint of a pool that is in slow start.
type growing struct {
	endpoint netip.AddrPort
	whole    uint16
	since    time.Time
}

// stretch multiplies the weights of slots so that each weight can rise in small steps. With few
// scales, it multiplies by slowStartUnits or not at all, so that a change of the smallest weight
// rarely changes the rest.
func stretch(slots []Slot, fewScales bool) {
	least, total := uint64(math.MaxUint16), uint64(0)
	for i := range slots {
		w := uint64(slots[i].Weight)
		least, total = min(least, w), total+w
	}

	if total == 0 {
		return
	}
	times := (slowStartUnits + least - 1) / least
	if fewScales && times > 1 {
		times = slowStartUnits
	}
	times = min(times, max(maxUnits/total, 1))
	for i := range slots {
		slots[i].Weight *= uint16(times)
	}
}

// whole returns t with the whole weight of each endpoint.
func (t *Table) whole() *Table {
	if t == nil || t.ramps == nil {
		return t
	}
	w := *t
	w.ramps = nil
	for id, list := range t.ramps.pools.All() {
		if p := t.pools.At(id); p != nil {
			w.pools = w.pools.Set(id, p.with(p, list, func(g *growing) uint16 { return g.whole }))
		}
	}

	return &w
}

// with returns p with new weights of endpoints in slow start, and with units that move few clients
// from like. It returns p itself if nothing differs.
func (p *Pool) with(like *Pool, list []growing, weight func(*growing) uint16) *Pool {
	same := p
	for i := range p.Slots {
		g := find(list, p.Slots[i].Endpoint)
		if g == nil {
			continue
		}
		if w := weight(g); w != p.Slots[i].Weight {
			if same == p {
				same = p.clone()
			}
			same.Slots[i].Weight = w
		}
	}

	if p.hashes() {
		same = same.clone()
		same.lay(like, 1)
	}

	return same
}

// find returns the entry of the endpoint in list, or nil. Few endpoints of a pool are in slow start
// at a time.
func find(list []growing, endpoint netip.AddrPort) *growing {
	for i := range list {
		if list[i].endpoint == endpoint {
			return &list[i]
		}
	}

	return nil
}

// At returns t, a result of [Resolve], with the weights of a point in time. Endpoints that became
// ready after prev, and endpoints that are in slow start in prev, have a fraction of their weight.
// prev is the current or planned table of the kernel: an earlier result of At, or a table that was
// read from a kernel. In a table that was read, the endpoint with the greatest fraction of its
// weight counts as having its full weight. The other endpoints continue their slow start from their
// fractions relative to it.
//
// The result depends only on prev, the state and the time. If no service has a slow start, At
// returns t itself at no cost. At takes the next step at least 100 ms after the last step. If a
// pool changes for another reason, At also takes a step there.
func (t *Table) At(now func() time.Time, prev *Table) *Table {
	if !t.remembers() || t.memory.state.slowStarts == 0 {
		return t
	}
	t = t.whole()
	if prev == nil {
		return t
	}
	at := *t
	r := ramper{t: &at, prev: prev, now: now(), old: &ramps{}, done: map[PoolID]bool{}}
	if prev.ramps != nil {
		r.old = prev.ramps
	}
	r.ramps.stepped = r.old.stepped
	for c := range pmap.Diff(prev.whole().pools, t.pools, (*Pool).equalButUnits) {
		r.done[c.Key] = true
		if c.InOld && c.InNew {
			r.changed(c.Old, c.New)
		}
	}

	r.goOn()
	if r.ramps.pools.Len() == 0 {
		return &at
	}
	if least := r.now.Add(slowStartStep); r.ramps.next.Before(least) {
		r.ramps.next = least
	}
	at.ramps = &r.ramps
	return &at
}

// NextStep returns the time of the next slow start step. It is zero if no endpoint is in slow
// start.
func (t *Table) NextStep() time.Time {
	if t == nil || t.ramps == nil {
		return time.Time{}
	}
	return t.ramps.next
}

// ramper computes the present table from a table with whole weights.
type ramper struct {
	t     *Table // a copy that may be changed
	prev  *Table
	old   *ramps // the ramps of prev
	now   time.Time
	ramps ramps
	done  map[PoolID]bool // pools that differ
	find  resolver        // of candidates in prev
}

// slowStart returns the duration of a slow start in a pool of the table.
func (t *Table) slowStart(id PoolID) time.Duration {
	if svc := t.service(id.Service.Name); svc != nil {
		return svc.SlowStart
	}
	return 0
}

// changed handles a pool that differs from its predecessor.
func (r *ramper) changed(was, is *Pool) {
	takes := r.t.slowStart(is.ID)
	if takes == 0 {
		return
	}
	grew := r.old.pools.At(is.ID)
	before := r.readyBefore(is.ID)
	parts := newParts(was, is)
	var list []growing
	for _, s := range is.Slots {
		g := growing{endpoint: s.Endpoint, whole: s.Weight, since: r.now}
		if old := find(grew, s.Endpoint); old != nil {
			g.since = r.rescaled(old.since, is.ID)
		} else if part, found := parts[s.Endpoint]; found {
			if r.prev.remembers() || part > 1-.5/slowStartUnits {
				continue // it has its whole weight, which may have changed
			}
			g.since = r.now.Add(-time.Duration(float64(takes) *
				max(0, part-slowStartShare) / (1 - slowStartShare)))
		} else if before[s.Endpoint] {
			continue // it was ready, and the pool did not need it
		}

		list = append(list, g)
	}

	r.grow(is, list, takes)
}

// newParts returns, for each endpoint in is, the fraction of its weight that it had in was. The
// endpoint with the greatest fraction is considered whole.
func newParts(was, is *Pool) map[netip.AddrPort]float64 {
	parts, greatest := map[netip.AddrPort]float64{}, 0.
	for _, s := range was.Slots {
		parts[s.Endpoint] = float64(s.Weight)
	}
	for _, s := range is.Slots {
		if w, found := parts[s.Endpoint]; found {
			parts[s.Endpoint] = w / float64(s.Weight)
			greatest = max(greatest, parts[s.Endpoint])
		}
	}

	for e := range parts {
		parts[e] /= max(greatest, 1e-9)
	}
	return parts
}

// readyBefore returns the endpoints that were ready in the previous state, including endpoints that
// were in no pool because nearer endpoints were preferred.
func (r *ramper) readyBefore(id PoolID) map[netip.AddrPort]bool {
	if !r.prev.remembers() {
		return nil
	}
	s := r.prev.memory.state
	p := s.port(id.Service)
	if p == nil {
		return nil
	}
	all := map[netip.AddrPort]bool{}
	for _, c := range r.find.candidates(p, id.Family, s.entries.At(id.Service.Name).endpoints) {
		all[c.addr] = usabilityOf(c.endpoint) == ready
	}
	return all
}

// rescaled returns the time at which an endpoint's slow start would have begun if the service's
// SlowStart had always had its present value.
func (r *ramper) rescaled(since time.Time, id PoolID) time.Time {
	before, takes := r.prev.slowStart(id), r.t.slowStart(id)
	if before == 0 || before == takes {
		return since
	}
	part := float64(r.now.Sub(since)) / float64(before)
	return r.now.Add(-time.Duration(part * float64(takes)))
}

// goOn continues the slow starts in the pools that do not differ. Between steps, endpoints keep
// their weights.
func (r *ramper) goOn() {
	due := !r.now.Before(r.old.stepped.Add(slowStartStep))
	for id, list := range r.old.pools.All() {
		takes, p := r.t.slowStart(id), r.t.pools.At(id)
		if takes == 0 || p == nil || r.done[id] {
			continue
		}
		if before := r.prev.slowStart(id); before != takes {
			list = slices.Clone(list)
			for i := range list {
				list[i].since = r.rescaled(list[i].since, id)
			}
		}

		held := r.prev.pools.At(id)
		if !due {
			r.ramps.pools = r.ramps.pools.Set(id, list)
			r.t.pools = r.t.pools.Set(id, held)
			continue
		}

		if r.grow(p, list, takes); r.t.pools.At(id).Equal(held) {
			r.t.pools = r.t.pools.Set(id, held)
		} else {
			r.ramps.stepped = r.now
		}
	}
}

// grow gives the endpoints of a pool their present weights.
func (r *ramper) grow(p *Pool, list []growing, takes time.Duration) {
	var left []growing
	for _, g := range list {
		if r.now.Sub(g.since) >= takes {
			continue
		}
		left = append(left, g)
		if next := g.next(r.now, takes); r.ramps.next.IsZero() || next.Before(r.ramps.next) {
			r.ramps.next = next
		}
	}

	if len(left) > 0 {
		r.ramps.pools = r.ramps.pools.Set(p.ID, left)
	}
	r.t.pools = r.t.pools.Set(p.ID, p.with(r.prev.pools.At(p.ID), left, func(g *growing) uint16 {
		return g.weight(r.now, takes)
	}))
}

// unit returns the weight of a step, at most 5 % of the whole.
func (g *growing) unit() float64 { return float64(max(g.whole/slowStartUnits, 1)) }

// weight returns the weight at a time, in whole steps.
func (g *growing) weight(now time.Time, takes time.Duration) uint16 {
	line := slowStartShare + (1-slowStartShare)*float64(now.Sub(g.since))/float64(takes)
	steps := math.Round(float64(g.whole) * line / g.unit())
	return uint16(min(max(steps*g.unit(), 1), float64(g.whole)))
}

// next returns the time of the next change of the weight, a little later, so that rounding does not
// miss the change.
func (g *growing) next(now time.Time, takes time.Duration) time.Time {
	steps := math.Round(float64(g.weight(now, takes)) / g.unit())
	line := (steps + .5) * g.unit() / float64(g.whole)
	after := float64(takes) * (line - slowStartShare) / (1 - slowStartShare)
	return g.since.Add(min(time.Duration(after)+time.Microsecond, takes))
}
