package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/examples/command/instance"
	"github.com/kernlb/kernlb/servicemodel"
)

func statusFlags(o *options, fs *flag.FlagSet) {
	o.status = defaultPage
	text(fs, &o.status, "page", "`URL` of kernlb watch -listen, or unix:PATH of its socket, or "+
		"the URL of another program that serves /healthz, such as kubeproxy; it knows its silent "+
		"endpoints (default "+o.status+")", "a URL such as http://127.0.0.1:10256, or unix:PATH",
		func(s string) bool {
			u, err := url.Parse(s)
			return err == nil && (u.Scheme == "http" && u.Host != "" || u.Scheme == "unix")
		})
}

// defaultPage is where kernlb watch and kubeproxy usually answer.
const defaultPage = "http://127.0.0.1:10256"

// healthJSON is the part of /healthz that status prints.
type healthJSON struct {
	Healthy     bool      `json:"healthy"`
	LastUpdated time.Time `json:"lastUpdated"`
	Refused     []struct {
		Service  string `json:"service"`
		Family   string `json:"family"`
		Kept     bool   `json:"kept"`
		Problems []struct {
			Error string `json:"error"`
		} `json:"problems"`
	} `json:"refused"`
	Serving  *health.Serving        `json:"serving"`
	Warnings []servicemodel.Warning `json:"warnings"`
	Node     *node.Report           `json:"node"`
	Problems []string               `json:"problems"`
	Silent   []silence.Change       `json:"silent"`
}

var (
	// errProblems says that status found problems.
	errProblems = errors.New("there are problems: see above")
	// errNotServing says that the kernel holds what is wanted, and clients cannot use all of it.
	errNotServing = errors.New("clients cannot use some services: see above")
	// errNode says that services are as they should be, and this node loses their connections.
	errNode = errors.New("this node loses connections of clients: see above")
)

// status prints whether a running program has problems, what clients meet, and what the checks of
// the node found.
func (p *program) status(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	all, h, err := p.askHealth(ctx, "/healthz")
	if err == nil && h.Node != nil && h.Node.Since.IsZero() { // until counters can be compared
		time.Sleep(time.Second / 2)
		all, h, err = p.askHealth(ctx, "/healthz")
	}

	if err != nil {
		return p.full(err)
	}
	if err := p.print(all, h.text()); err != nil {
		return err
	}
	if !h.Healthy || len(h.Refused)+len(h.Problems) > 0 {
		return errProblems
	}
	if h.Serving != nil && !h.Serving.All() {
		return errNotServing
	}
	if h.Node != nil && h.Node.Count("", node.Error) > 0 {
		return errNode
	}
	return nil
}

// full says that the table of connections is full, if that explains why no program answers: a
// connection to the page needs room in the table, too.
func (p *program) full(err error) error {
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	checks := node.NewChecker(&node.Config{Ours: instance.Owns(p.opts.instance)})
	r := checks.Report(ctx, nil)
	r.Findings = slices.DeleteFunc(r.Findings, func(f node.Finding) bool {
		return f.Check != node.Conntrack || f.Severity != node.Error
	})
	if len(r.Findings) == 0 {
		return err
	}
	var text strings.Builder
	fmt.Fprintln(&text, "the table of connections is full, so the page cannot be reached either")
	writeNode(&text, r)
	return errors.Join(p.print(struct {
		Node *node.Report `json:"node"`
	}{r}, text.String()), errNode)
}

// askHealth asks the program for /healthz, or /livez, which is the same without checks of the node.
func (p *program) askHealth(ctx context.Context, path string) (all json.RawMessage, h *healthJSON,
	err error) {
	at, dialer := strings.TrimSuffix(p.opts.status, "/"), net.Dialer{Timeout: 3 * time.Second}
	dial := dialer.DialContext
	if socket, isSocket := strings.CutPrefix(at, "unix:"); isSocket {
		at, dial = "http://localhost", func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		}
	}

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at+path, nil)
	if err != nil {
		return nil, nil, err
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial}} // without a proxy
	a, err := client.Do(req)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return nil, nil, fmt.Errorf("nothing answered at %s in time: kernlb watch -listen "+
				"hangs or does not run (-page names another address)", p.opts.status)
		}
		return nil, nil, fmt.Errorf("no program answers; kernlb watch -listen would: %w", err)
	}
	defer a.Body.Close()
	h = &healthJSON{}
	if err = json.NewDecoder(io.LimitReader(a.Body, 16<<20)).Decode(&all); err == nil {
		err = json.Unmarshal(all, h)
	}
	if err != nil || h.LastUpdated.IsZero() {
		return nil, nil, fmt.Errorf("%s: that is no %s of kernlb: %s", p.opts.status,
			path, a.Status)
	}

	return all, h, nil
}

func (h *healthJSON) text() string {
	var b strings.Builder
	if h.Healthy {
		fmt.Fprintln(&b, "in sync: the kernel holds what is wanted")
	} else {
		fmt.Fprintf(&b, "not in sync: the kernel has not held what is wanted since %v\n",
			h.LastUpdated.Format(time.RFC3339))
	}

	writeServing(&b, h.Serving)
	for _, l := range h.Problems {
		fmt.Fprintln(&b, "problem: "+l)
	}
	for _, r := range h.Refused {
		becomes := "left out"
		if r.Kept {
			becomes = "left as it was"
		}
		fmt.Fprintf(&b, "refused: %s, %s\n", cmp.Or(r.Service, r.Family), becomes)
		for _, e := range r.Problems {
			fmt.Fprintln(&b, "  "+e.Error)
		}
	}

	for _, c := range h.Silent {
		fmt.Fprintln(&b, silentText(c))
	}
	for _, w := range h.Warnings {
		fmt.Fprintln(&b, "warning:", w)
	}
	writeNode(&b, h.Node)
	return b.String()
}

// writeNode writes what the checks of the node found.
func writeNode(b *strings.Builder, r *node.Report) {
	if r == nil {
		fmt.Fprintln(b, "this node: the program does not check it")
		return
	}

	var counts []string
	for _, s := range []node.Severity{node.Error, node.Warning, node.Note} {
		if n := r.Count("", s); n > 0 {
			counts = append(counts, count(n, string(s)))
		}
	}

	if n := len(r.Unknown); n > 0 {
		counts = append(counts, fmt.Sprintf("%d not checked", n))
	}
	fmt.Fprintln(b, "this node:", cmp.Or(strings.Join(counts, ", "),
		"no fault in its settings and rules (kernlb diagnose asks endpoints)"))
	for _, f := range r.Findings {
		fmt.Fprintf(b, "%v\n  %s\n", f, f.Do)
	}
	for _, u := range r.Unknown {
		fmt.Fprintln(b, "not checked:", u)
	}
}

// count writes a number of things.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// writeServing writes what clients meet.
func writeServing(b *strings.Builder, s *health.Serving) {
	if s == nil {
		fmt.Fprintln(b, "serving: unknown, because the program does not know what the kernel holds")
		return
	}

	fmt.Fprintf(b, "serving: %d of %d services", s.Serve, s.Services)
	for _, n := range []struct {
		services int
		what     string
	}{
		{s.Reject, "without endpoints at an address"},
		{s.Local, "at other nodes (traffic policy Local)"},
		{s.Nowhere, "without an address at this node"},
		{s.Refused, "refused"},
		{s.Kept, "by an earlier definition"},
	} {
		if n.services > 0 {
			fmt.Fprintf(b, "; %d %s", n.services, n.what)
		}
	}

	if s.Conflicts > 0 {
		fmt.Fprintf(b, "; conflicts: %d", s.Conflicts)
	}

	fmt.Fprintln(b)
	for _, c := range s.Lost {
		fmt.Fprintln(b, "conflict:", c)
	}
	for _, c := range s.Rejected {
		fmt.Fprintf(b, "rejects: %v at %v: %v\n", c.Service.Name, c.At, c)
	}
	if more := s.Reject - len(s.Rejected); more > 0 {
		fmt.Fprintf(b, "rejects: %d more; kernlb show lists all services\n", more)
	}
}
