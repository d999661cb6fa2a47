package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// page reads /recent.json of an engine's page (docs/page.md).
type page struct {
	client *http.Client
	url    string
	name   string // as the flag has it; empty: none
}

// event is an event of the engine.
type event struct {
	Time     time.Time           `json:"time"`
	Kind     string              `json:"kind"`
	Text     string              `json:"text"`
	Counts   servicemodel.Counts `json:"counts"`
	Duration string              `json:"duration"`
	Changes  []string            `json:"changes"`
}

// recent holds the events of the engine, the newest first.
type recent struct {
	Events []event `json:"events"`
	why    string  // it could not be read
}

// newPage parses the address of the page. It sends no request yet.
func newPage(where string) (*page, error) {
	p := &page{name: where, url: strings.TrimSuffix(where, "/"),
		client: &http.Client{Timeout: time.Second}}
	if path, unix := strings.CutPrefix(where, "unix:"); unix {
		p.url = "http://localhost"
		p.client.Transport = &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", path)
			}}
	}

	u, err := url.Parse(p.url)
	if where != "" && (err != nil || !strings.HasPrefix(u.Scheme, "http") || u.Host == "") {
		return nil, fmt.Errorf("-page: %q: want an URL such as http://127.0.0.1:10256, or "+
			"unix:PATH", where)
	}

	return p, nil
}

// maxPage bounds the events of the engine, in bytes.
const maxPage = 4 << 20

// recent requests the events of the engine.
func (p *page) recent(ctx context.Context) (r recent) {
	if p.name == "" {
		return recent{why: "-page is empty"}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/recent.json", nil)
	if err != nil {
		return recent{why: err.Error()}
	}
	a, err := p.client.Do(req)
	if err != nil {
		return recent{why: "no page at " + p.name + ": kernlb watch -listen serves one"}
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return recent{why: p.name + " is no page of kernlb: " + a.Status}
	}
	if err := json.NewDecoder(io.LimitReader(a.Body, maxPage)).Decode(&r); err != nil {
		return recent{why: p.name + " is no page of kernlb: " + err.Error()}
	}
	return r
}

// latency returns the time of the last applies as text.
func (r *recent) latency() string {
	var all []time.Duration
	for _, e := range r.Events {
		if d, err := time.ParseDuration(e.Duration); err == nil && d > 0 {
			all = append(all, d)
		}
	}

	if len(all) == 0 {
		return "no applies yet"
	}
	slices.Sort(all)
	round := func(d time.Duration) time.Duration { return d.Round(time.Microsecond) }
	return fmt.Sprintf("last %d applies: median %v, slowest %v", len(all),
		round(all[(len(all)-1)/2]), round(all[len(all)-1]))
}

// line returns an event as one line.
func (e *event) line() string {
	l := []string{e.Time.Format("15:04:05"), e.Kind}
	if e.Text != "" {
		l = append(l, e.Text)
	}
	if c := e.Counts; c != (servicemodel.Counts{}) {
		l = append(l, fmt.Sprintf("%d added, %d changed, %d removed", c.Added, c.Changed,
			c.Removed))
	}

	if e.Duration != "" && e.Duration != "0s" {
		l = append(l, "in "+e.Duration)
	}
	return strings.Join(l, "  ")
}

// about returns the changes that name a service.
func (r *recent) about(n servicemodel.Name) (lines []string) {
	for _, e := range r.Events {
		for _, c := range e.Changes {
			if slices.ContainsFunc(strings.Fields(c),
				func(word string) bool { return names(n, word) }) {
				lines = append(lines, e.Time.Format("15:04:05")+"  "+strings.TrimSpace(c))
			}
		}
	}

	return lines
}

// names reports whether a word is a service, or begins with its name, like "default/web:http" and
// "default/web/TCP".
func names(n servicemodel.Name, word string) bool {
	rest, found := strings.CutPrefix(word, n.String())
	return found && (rest == "" || rest[0] == ':' || rest[0] == '/')
}
