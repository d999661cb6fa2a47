package page

import (
	"net/http"
	"net/netip"
	"net/url"
	"strconv"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// perPage is the number of services on a page.
const perPage = 50

type servicesData struct {
	Query string `json:"query,omitempty"`
	Show  string `json:"show"` // "all" or "problems"
	// All counts all services, Problems the services that need attention, and Found the services
	// that match the search. Services has one page of the services that match.
	All      int          `json:"all"`
	Problems int          `json:"problems"`
	Found    int          `json:"found"`
	Page     int          `json:"page"` // from 1
	Pages    int          `json:"pages"`
	Services []serviceRow `json:"services"`

	Refresh string `json:"-"` // the parameter of the request
}

type serviceRow struct {
	Service   servicemodel.Name          `json:"service"`
	Condition condition                  `json:"condition"`
	Cause     string                     `json:"cause,omitempty"`
	Frontends []servicemodel.FrontendKey `json:"frontends"`
	Endpoints int                        `json:"endpoints"` // used endpoints, each counted once
}

// Bad reports whether the service needs attention.
func (r serviceRow) Bad() bool { return r.Condition.bad() }

// Turn returns the address of the list's page that is the given number of pages later.
func (d *servicesData) Turn(pages int) string {
	q := url.Values{"show": {d.Show}, "page": {strconv.Itoa(d.Page + pages)}}
	if d.Query != "" {
		q.Set("q", d.Query)
	}
	if d.Refresh != "" {
		q.Set(refreshKey, d.Refresh)
	}
	return "./?" + q.Encode()
}

func (p *Page) services(r *http.Request, s *dataplane.Status) (any, error) {
	l, q := p.listingOf(s), r.URL.Query()
	d := &servicesData{Query: q.Get("q"), Show: q.Get("show"), All: len(l.all), Problems: l.bad,
		Page: 1, Services: []serviceRow{}, Refresh: q.Get(refreshKey)}
	switch d.Show {
	case "":
		d.Show = "all"
	case "all", "problems":
	default:
		return nil, badRequest("show: %q: want all or problems", d.Show)
	}

	if text := q.Get("page"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, badRequest("page: %q: want a number from 1", text)
		}
		d.Page = n
	}

	d.fill(l)
	return d, nil
}

// fill finds the services, and keeps the services of the page. A page number that is too high means
// the last page.
func (d *servicesData) fill(l *listing) {
	var found []*entry
	words := parseSearch(d.Query)
	for i := range l.all {
		e := &l.all[i]
		if (d.Show == "all" || e.condition.bad()) && words.matches(e) {
			found = append(found, e)
		}
	}

	d.Found = len(found)
	d.Pages = max(1, (d.Found+perPage-1)/perPage)
	d.Page = min(d.Page, d.Pages)
	first := (d.Page - 1) * perPage
	for _, e := range found[first:min(first+perPage, len(found))] {
		d.Services = append(d.Services, l.row(e))
	}
}

func (l *listing) row(e *entry) serviceRow {
	r := serviceRow{Service: e.name, Condition: e.condition,
		Frontends: make([]servicemodel.FrontendKey, len(e.frontends))}
	endpoints := map[netip.AddrPort]bool{}
	for i, f := range e.frontends {
		r.Frontends[i] = f.Key
		if cause := l.Held.Cause(f); cause.Kind != "" && r.Cause == "" {
			r.Cause = cause.String()
		}
		for slot := range l.Held.Slots(f) {
			endpoints[slot.Endpoint] = true
		}
	}

	r.Endpoints = len(endpoints)
	switch e.condition {
	case refused:
		r.Cause = l.refusalOf(e.name).Err.Error()
	case conflict:
		for _, c := range l.Conflicts {
			if c.Loser.Name == e.name {
				r.Cause = c.String()
				break
			}
		}
	}

	return r
}
