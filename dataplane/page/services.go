package page

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// perPage is how many services are on a page.
const perPage = 50

// servicesData is the list of services.
type servicesData struct {
	Query string `json:"query,omitempty"`
	Show  string `json:"show"` // "all" or "problems"
	// All counts the services, Problems those that somebody should look at, and Found those that
	// were looked for, of which one page is in Services.
	All      int          `json:"all"`
	Problems int          `json:"problems"`
	Found    int          `json:"found"`
	Page     int          `json:"page"` // from 1
	Pages    int          `json:"pages"`
	Services []serviceRow `json:"services"`

	Refresh string `json:"-"` // as it was asked for
}

// serviceRow is a service in the list.
type serviceRow struct {
	Service   servicemodel.Name          `json:"service"`
	Condition condition                  `json:"condition"`
	Cause     string                     `json:"cause,omitempty"`
	Frontends []servicemodel.FrontendKey `json:"frontends"`
	Endpoints int                        `json:"endpoints"` // different ones that are used
}

// Bad reports whether somebody should look.
func (r serviceRow) Bad() bool { return r.Condition.bad() }

// At is the address of another page of the list.
func (d *servicesData) At(page int) string {
	q := url.Values{"show": {d.Show}, "page": {strconv.Itoa(page)}}
	if d.Query != "" {
		q.Set("q", d.Query)
	}
	if d.Refresh != "" {
		q.Set(refreshKey, d.Refresh)
	}
	return "./?" + q.Encode()
}

// Before and After are the neighbours of the page, 0 where there is none.
func (d *servicesData) Before() int { return d.Page - 1 }

// After is the number of the next page, 0 if this is the last.
func (d *servicesData) After() int {
	if d.Page == d.Pages {
		return 0
	}
	return d.Page + 1
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
	d.fill(l, s)
	return d, nil
}

// fill looks for the services, and takes those of the page. A page behind the last one is the last.
func (d *servicesData) fill(l *listing, s *dataplane.Status) {
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
		d.Services = append(d.Services, l.row(e, s))
	}
}

// row is a service in the list.
func (l *listing) row(e *entry, s *dataplane.Status) serviceRow {
	r := serviceRow{Service: e.name, Condition: e.condition,
		Frontends: make([]servicemodel.FrontendKey, len(e.frontends))}
	endpoints := map[servicemodel.Slot]bool{}
	for i, f := range e.frontends {
		r.Frontends[i] = f.Key
		if cause := l.held.Cause(f); cause.Kind != servicemodel.NoCause && r.Cause == "" {
			r.Cause = cause.String()
		}
		for _, pool := range poolsOf(l.held, f) {
			for _, slot := range pool.Slots {
				slot.Weight = 0
				endpoints[slot] = true
			}
		}
	}
	r.Endpoints = len(endpoints)
	switch e.condition {
	case refused:
		r.Cause = refusalOf(s, e.name).Err.Error()
	case conflict:
		for _, c := range s.Conflicts {
			if c.Loser.Name == e.name {
				r.Cause = c.String()
				break
			}
		}
	}
	return r
}

// refusalOf returns why a service was left out, nil if it was not.
func refusalOf(s *dataplane.Status, n servicemodel.Name) *dataplane.Refusal {
	for i := range s.Refused {
		if s.Refused[i].Service == n {
			return &s.Refused[i]
		}
	}
	return nil
}
