package page

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane"
)

// view makes the contents of a path, for browsers and for JSON. If it returns both data and an
// error, a browser shows both.
type view func(*http.Request, *dataplane.Status) (any, error)

// problem is an error with its HTTP status. Any other error is a 500.
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

// templates are the pages by the names of their views, each with its frame.
var templates = parseTemplates()

func parseTemplates() map[string]*template.Template {
	frame := template.Must(template.New("frame.html").Funcs(template.FuncMap{
		"ago":     ago,
		"percent": percent,
		"count":   count,
		"join":    strings.Join,
		"addr":    addrText,
	}).ParseFS(files, "files/frame.html"))
	all := map[string]*template.Template{}
	for name := range titles {
		all[name] = template.Must(template.Must(frame.Clone()).ParseFS(files,
			"files/"+name+".html"))
	}
	return all
}

// frame is the part of each page outside the view, with the data of the view.
type frame struct {
	View   string
	Title  string
	JSON   string // the address of the same as JSON
	Status *dataplane.Status
	Node   string
	Data   any
	Err    error
	// Problems is the number of [Config.Problems].
	Problems int
	refresh
}

// Wrong counts the entries of the page /refused that need attention.
func (f *frame) Wrong() int { return f.Problems + len(f.Status.Refused) }

// titled is data with a title of its own.
type titled interface{ title() string }

var titles = map[string]string{"services": "Services", "service": "Service", "refused": "Refused",
	"recent": "Recent", "conntrack": "Conntrack", "trace": "Trace", "hooks": "Hooks",
	"ask": "Service"}

// html returns a handler that shows a view in a browser.
func (p *Page) html(name string, v view) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := p.engine.Status()
		data, err := v(r, &status)
		f := frame{View: name, Title: titles[name], JSON: "./" + name + ".json", Status: &status,
			Data: data, Node: status.State.Node().Name, Err: err,
			Problems: len(p.cfg.Problems())}
		if t, ok := data.(titled); ok {
			f.Title = t.title()
		}
		if name == "ask" {
			f.JSON = "" // a link does not ask
		} else {
			f.refresh = refreshOf(r)
		}
		if r.URL.RawQuery != "" && f.JSON != "" {
			f.JSON += "?" + r.URL.RawQuery
		}
		var b bytes.Buffer
		if err := templates[name].Execute(&b, &f); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		write(w, "text/html; charset=utf-8", codeOf(err), b.Bytes())
	})
}

// json returns a handler that answers with a view as JSON.
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
	_, _ = w.Write(body) // the client is gone, so the error is of no use
}

func serveStyle(w http.ResponseWriter, r *http.Request) {
	http.ServeFileFS(w, r, files, "files/style.css")
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

// addrText returns an address as text, or "" if it is not set.
func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
