package page

import (
	"net/http"
	"net/url"
)

// refreshKey is the parameter of a page that the browser loads again and again.
const (
	refreshKey = "refresh"
	refreshOn  = "on"
)

// refresh says whether the browser is to load a page again after a while, by the page itself and
// without a script. Whoever looks switches it on and off by a link, for a page that changes under
// the hands of its reader is not for everybody (WCAG 2.2, 2.2.2).
type refresh struct {
	Refreshes bool
	Switch    string // the link that switches it; the same page otherwise
	Keep      string // the parameters that keep it on another page
}

// Interval is how many seconds a page is looked at before it is loaded again.
func (refresh) Interval() int { return 5 }

func refreshOf(r *http.Request) refresh {
	q := r.URL.Query()
	on := q.Get(refreshKey) == refreshOn
	f := refresh{Refreshes: on}
	if on {
		f.Keep = "?" + url.Values{refreshKey: {refreshOn}}.Encode()
		q.Del(refreshKey)
	} else {
		q.Set(refreshKey, refreshOn)
	}
	f.Switch = "?" + q.Encode()
	return f
}
