package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

func statusFlags(o *options, fs *flag.FlagSet) {
	o.status = "http://127.0.0.1:10256"
	text(fs, &o.status, "page", "`URL` of kernlb watch -listen, or of another program that serves "+
		"/healthz, such as kubeproxy (default "+o.status+")",
		"a URL such as http://127.0.0.1:10256", func(s string) bool {
			u, err := url.Parse(s)
			return err == nil && u.Scheme == "http" && u.Host != ""
		})
}

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
	Warnings []servicemodel.Warning `json:"warnings"`
	Problems []string               `json:"problems"`
}

// errProblems says that status found problems.
var errProblems = errors.New("there are problems: see above")

// status prints whether a running program has problems.
func (p *program) status(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		strings.TrimSuffix(p.opts.status, "/")+"/healthz", nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{}} // without the environment's proxy
	a, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("no program answers; kernlb watch -listen would: %w", err)
	}
	defer a.Body.Close()
	var all json.RawMessage
	var h healthJSON
	if err = json.NewDecoder(io.LimitReader(a.Body, 16<<20)).Decode(&all); err == nil {
		err = json.Unmarshal(all, &h)
	}
	if err != nil || h.LastUpdated.IsZero() {
		return fmt.Errorf("%s: that is no /healthz of kernlb: %s", p.opts.status, a.Status)
	}
	if err := p.print(all, h.text()); err != nil {
		return err
	}
	if !h.Healthy || len(h.Refused)+len(h.Problems) > 0 {
		return errProblems
	}
	return nil
}

func (h *healthJSON) text() string {
	var b strings.Builder
	if h.Healthy {
		fmt.Fprintln(&b, "healthy: what is wanted reaches the kernel")
	} else {
		fmt.Fprintf(&b, "unhealthy: what is wanted has not reached the kernel since %v\n",
			h.LastUpdated.Format(time.RFC3339))
	}
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
	for _, w := range h.Warnings {
		fmt.Fprintln(&b, "warning:", w)
	}
	return b.String()
}
