package page

import (
	"iter"
	"net/http"
	"slices"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// condition is a word for the health of a service.
type condition string

const (
	ok       condition = "ok"       // all connections are balanced
	refused  condition = "refused"  // it is left out, see dataplane.Refusal
	rejects  condition = "rejects"  // some connections are rejected: no endpoint can take them
	drops    condition = "drops"    // some are dropped: this node has no endpoint for them
	conflict condition = "conflict" // another service has one of its addresses
	pending  condition = "pending"  // it is not in the kernel yet
	removed  condition = "removed"  // it is no longer wanted
	unused   condition = "unused"   // it has no address or no port
	unknown  condition = "unknown"  // the kernel's contents are not known
)

// bad reports whether the service needs attention.
func (c condition) bad() bool {
	return c == refused || c == rejects || c == drops || c == conflict
}

type entry struct {
	name      servicemodel.Name
	text      string                          // the name
	frontends []*servicemodel.Frontend        // in the kernel; shared with tables
	endpoints iter.Seq[servicemodel.Endpoint] // wanted; shared with states
	condition condition
}

// listing has all services that are desired or in the kernel at one moment, in the order of their
// names. It is never modified.
type listing struct {
	dataplane.Status
	all []entry
	bad int
}

// listingOf returns the listing of a status. It reuses the last listing until the engine does
// something.
func (p *Page) listingOf(s *dataplane.Status) *listing {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.listed; l == nil || l.Held != s.Held || !l.State.Same(s.State) ||
		!l.Succeeded.Equal(s.Succeeded) || l.Pending() != s.Pending() ||
		!slices.Equal(l.Conflicts, s.Conflicts) || !slices.EqualFunc(l.Refused, s.Refused, same) {
		p.listed = newListing(s)
	}

	return p.listed
}

// same compares refusals. It compares the texts of errors, because errors of backends need not be
// comparable.
func same(a, b dataplane.Refusal) bool {
	return a.Service == b.Service && a.Err.Error() == b.Err.Error()
}

func newListing(s *dataplane.Status) *listing {
	l := &listing{Status: *s}
	frontends := make(map[servicemodel.Name][]*servicemodel.Frontend, s.State.Len())
	for f := range s.Held.Frontends() {
		frontends[f.Service.Name] = append(frontends[f.Service.Name], f)
	}
	marked := map[servicemodel.Name]condition{}
	for _, c := range s.Conflicts {
		marked[c.Loser.Name] = conflict
	}
	for _, r := range s.Refused {
		if len(r.Endpoints) == 0 {
			marked[r.Service] = refused
		}
	}

	l.all = make([]entry, 0, s.State.Len())
	for svc := range s.State.Services() {
		own := frontends[svc.Name]
		_, eps := s.State.Peek(svc.Name)
		l.add(entry{svc.Name, svc.Name.String(), own, eps,
			l.conditionOf(own, marked[svc.Name])})
		delete(frontends, svc.Name)
	}

	sorted := len(frontends) == 0
	for name, own := range frontends {
		_, eps := s.State.Peek(name)
		l.add(entry{name, name.String(), own, eps, removed})
	}
	if !sorted {
		slices.SortFunc(l.all, func(a, b entry) int { return a.name.Compare(b.name) })
	}
	return l
}

func (l *listing) add(e entry) {
	l.all = append(l.all, e)
	if e.condition.bad() {
		l.bad++
	}
}

// conditionOf returns the condition of a desired service with its frontends. marked is the
// condition according to the last apply.
func (l *listing) conditionOf(own []*servicemodel.Frontend, marked condition) condition {
	switch {
	case marked == refused:
		return refused
	case l.Held == nil:
		return unknown
	}

	worst := ok
	for _, f := range own {
		switch {
		case f.Internal == servicemodel.Reject || f.External == servicemodel.Reject:
			return rejects
		case f.Internal == servicemodel.Drop || f.External == servicemodel.Drop:
			worst = drops
		}
	}

	switch {
	case worst == drops:
		return drops
	case marked == conflict:
		return conflict
	case len(own) == 0 && l.Pending():
		return pending
	case len(own) == 0:
		return unused
	}

	return ok
}

// named returns the service of that name, and the listing that contains it.
func (p *Page) named(text string, s *dataplane.Status) (*listing, *entry, error) {
	var name servicemodel.Name
	if err := name.UnmarshalText([]byte(text)); err != nil {
		return nil, nil, badRequest("name: %v", err)
	}
	l := p.listingOf(s)
	i, found := slices.BinarySearchFunc(l.all, name, func(e entry, n servicemodel.Name) int {
		return e.name.Compare(n)
	})
	if !found {
		return nil, nil, &problem{http.StatusNotFound, "there is no service " + name.String()}
	}
	return l, &l.all[i], nil
}

// refusalOf returns the refusal of a service, or nil.
func (l *listing) refusalOf(n servicemodel.Name) *dataplane.Refusal {
	for i := range l.Refused {
		if l.Refused[i].Service == n {
			return &l.Refused[i]
		}
	}

	return nil
}
