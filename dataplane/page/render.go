package page

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// view returns the contents of a path, for browsers and for JSON. If it returns both data and an
// error, a browser shows both.
type view func(*http.Request, *dataplane.Status) (any, error)

// problem is an error with its HTTP status. All other errors are a 500.
type problem struct {
	code int
	text string
}

func (e *problem) Error() string { return e.text }

func badRequest(format string, args ...any) error {
	return &problem{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// codeOf returns the HTTP status for the error of a view.
func codeOf(err error) int {
	if err == nil {
		return http.StatusOK
	}
	if p, ok := errors.AsType[*problem](err); ok {
		return p.code
	}
	return http.StatusInternalServerError
}

//go:embed files
var files embed.FS

// templates are the pages by the names of their files, each with its frame.
var templates = parseTemplates()

func parseTemplates() map[string]*template.Template {
	frame := template.Must(template.New("frame.html").Funcs(template.FuncMap{
		"ago":     ago,
		"percent": percent,
		"count":   count,
		"join":    strings.Join,
		"target":  servicemodel.TargetText,
		"where":   where,
	}).ParseFS(files, "files/frame.html"))
	all := map[string]*template.Template{}
	names, _ := fs.Glob(files, "files/*.html") // the pattern is valid
	for _, name := range names {
		all[path.Base(name)] = template.Must(template.Must(frame.Clone()).ParseFS(files, name))
	}
	return all
}

// refreshKey is the parameter of a page that reloads itself.
const (
	refreshKey = "refresh"
	refreshOn  = "on"
)

// where says which endpoints a policy uses.
func where(p servicemodel.TrafficPolicy) string {
	if p == servicemodel.PolicyLocal {
		return "on this node"
	}
	return "anywhere"
}

// frame is the part of each page outside the view, with the data of the view.
type frame struct {
	View   string
	JSON   string // the address of the page as JSON
	Status *dataplane.Status
	Data   any
	Err    error
	Links  map[string]string // Config.Links
	// Problems is the number of [Config.Problems].
	Problems int
	// Refreshes says whether the browser reloads the page after a while. The page itself requests
	// this, without a script. A link switches this on and off, because some people cannot read a
	// page that reloads by itself (WCAG 2.2, 2.2.2).
	Refreshes bool
	Switch    string // the link that switches reloading
	Keep      string // the parameters that keep reloading on other pages
}

// Wrong counts the entries of the page /refused that need attention.
func (f *frame) Wrong() int { return f.Problems + len(f.Status.Refused) }

// refresh sets the fields about reloading from the parameters of the request.
func (f *frame) refresh(q url.Values) {
	if f.Refreshes = q.Get(refreshKey) == refreshOn; f.Refreshes {
		f.Keep = "?" + url.Values{refreshKey: {refreshOn}}.Encode()
		q.Del(refreshKey)
	} else {
		q.Set(refreshKey, refreshOn)
	}

	f.Switch = "?" + q.Encode()
}

// html returns a handler that shows a view in a browser.
func (p *Page) html(name string, v view) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := p.engine.Status()
		data, err := v(r, &status)
		f := frame{View: name, Status: &status, Data: data, Err: err,
			Links: p.cfg.Links, Problems: len(p.cfg.Problems())}
		if name != "ask" { // a link does not ask
			f.JSON = "./" + name + ".json"
			if r.URL.RawQuery != "" {
				f.JSON += "?" + r.URL.RawQuery
			}
			f.refresh(r.URL.Query())
		}

		var b bytes.Buffer
		if err := templates[name+".html"].Execute(&b, &f); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}

		write(w, "text/html; charset=utf-8", codeOf(err), b.Bytes())
	})
}

// json returns a handler that answers with the data of a view as JSON.
func (p *Page) json(v view) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := p.engine.Status()
		data, err := v(r, &status)
		code := codeOf(err)
		if err != nil {
			data = map[string]string{"error": err.Error()}
		}
		body, err := json.MarshalIndent(data, "", "  ")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}

		write(w, "application/json", code, append(body, '\n'))
	})
}

func write(w http.ResponseWriter, kind string, code int, body []byte) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client is gone, so the error does not matter
}

// ago returns the time since t, such as "3s" or "2h5m".
func ago(t time.Time) string {
	d := time.Since(t)
	switch {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return d.Truncate(time.Second).String() + " ago"
	}

	return strings.TrimSuffix(d.Truncate(time.Minute).String(), "0s") + " ago"
}

// percent returns a fraction as text, such as "33.3 %".
func percent(f float64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", 100*f), ".0") + " %"
}

// count returns a number with its noun, such as "1 service" or "2 services".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
