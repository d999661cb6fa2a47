package page

import (
	"net/http"
	"net/url"
)

// refreshKey is the parameter of a page that reloads itself.
const (
	refreshKey = "refresh"
	refreshOn  = "on"
)

// refresh says whether the browser reloads a page after a while. The page itself asks for this,
// without a script. The reader switches it on and off by a link, because pages that change during
// reading are not for everybody (WCAG 2.2, 2.2.2).
type refresh struct {
	Refreshes bool
	Switch    string // the link that switches it; the same page otherwise
	Keep      string // the parameters that keep it on another page
}

// Interval is the time in seconds between two loads.
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
