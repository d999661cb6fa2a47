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

// view makes what a path shows, the same for browsers and as JSON. If it returns both data and an
// error, a browser is shown both.
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

// codeOf is the HTTP status of what a view returned.
func codeOf(err error) int {
	var p *problem
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &p):
		return p.code
	}
	return http.StatusInternalServerError
}

//go:embed files
var files embed.FS

// templates are the pages by the names of their views, each with the frame around it.
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

// frame is what is around each page, and the data of the view.
type frame struct {
	View   string
	Title  string
	JSON   string // where the same is as JSON
	Status *dataplane.Status
	Node   string
	Data   any
	Err    error
	refresh
}

// titled is data with a title of its own.
type titled interface{ title() string }

var titles = map[string]string{"services": "Services", "service": "Service", "refused": "Refused",
	"recent": "Recent", "conntrack": "Conntrack", "trace": "Trace", "hooks": "Hooks",
	"ask": "Service"}

func (p *Page) serveHTML(w http.ResponseWriter, r *http.Request, name string, v view) {
	status := p.engine.Status()
	data, err := v(r, &status)
	f := frame{View: name, Title: titles[name], JSON: "./" + name + ".json", Status: &status,
		Data: data, Node: status.State.Node().Name, Err: err}
	if t, ok := data.(titled); ok {
		f.Title = t.title()
	}
	if name == "ask" {
		f.JSON = "" // a link asks nothing
	} else {
		f.refresh = refreshOf(r)
	}
	if r.URL.RawQuery != "" && f.JSON != "" {
		f.JSON += "?" + r.URL.RawQuery
	}
	var b bytes.Buffer
	if err := templates[name].Execute(&b, f); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	write(w, "text/html; charset=utf-8", codeOf(err), b.Bytes())
}

func (p *Page) serveJSON(w http.ResponseWriter, r *http.Request, v view) {
	status := p.engine.Status()
	data, err := v(r, &status)
	code := codeOf(err)
	if err != nil {
		data = struct {
			Error string `json:"error"`
		}{err.Error()}
	}
	body, err := json.MarshalIndent(data, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	write(w, "application/json", code, append(body, '\n'))
}

func write(w http.ResponseWriter, kind string, code int, body []byte) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(code)
	_, _ = w.Write(body) // an asker that is gone has no use for an error
}

func serveStyle(w http.ResponseWriter, r *http.Request) {
	http.ServeFileFS(w, r, files, "files/style.css")
}

// ago is how long ago something was, such as "3s" or "2h5m".
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

// percent is a fraction such as "33.3 %".
func percent(f float64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", 100*f), ".0") + " %"
}

// count is a number and what it counts, such as "1 service" or "2 services".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// addrText is an address, or nothing if it is none.
func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
