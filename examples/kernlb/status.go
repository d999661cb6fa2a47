package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

func statusFlags(o *options, fs *flag.FlagSet) {
	o.status = "http://127.0.0.1:10256"
	fs.Func("page", "`URL` of kernlb watch -listen, or of another program that serves /healthz, "+
		"such as kubeproxy (default "+o.status+")", func(s string) error {
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "http" || u.Host == "" {
			return errors.New("want a URL such as http://127.0.0.1:10256")
		}
		o.status = s
		return nil
	})
}

// healthJSON is the part of /healthz that status prints.
type healthJSON struct {
	Healthy     bool      `json:"healthy"`
	LastUpdated time.Time `json:"lastUpdated"`
	Refused     []struct {
		Service  string `json:"service"`
		Kept     bool   `json:"kept"`
		Problems []struct {
			Error string `json:"error"`
		} `json:"problems"`
	} `json:"refused"`
	Problems []string `json:"problems"`
}

// errProblems says that status found problems.
var errProblems = errors.New("there are problems: see above")

// status prints whether a running program has problems.
func (p *program) status(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	a, err := askHealth(ctx, p.opts.status)
	if err != nil {
		return fmt.Errorf("no program answers; kernlb watch -listen would: %w", err)
	}
	defer a.Body.Close()
	var all json.RawMessage
	var h healthJSON
	if err = json.NewDecoder(a.Body).Decode(&all); err == nil {
		err = json.Unmarshal(all, &h)
	}
	if err != nil || h.LastUpdated.IsZero() {
		return fmt.Errorf("%s: that is no /healthz of kernlb: %s", p.opts.status, a.Status)
	}
	if p.opts.output == "json" {
		if err := p.printJSON(all); err != nil {
			return err
		}
	} else {
		p.printStatus(&h)
	}
	if !h.Healthy || len(h.Refused)+len(h.Problems) > 0 {
		return errProblems
	}
	return nil
}

// askHealth sends the request in the network namespace of the calling thread. An http.Client would
// leave that namespace.
func askHealth(ctx context.Context, where string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		strings.TrimSuffix(where, "/")+"/healthz", nil)
	if err != nil {
		return nil, err
	}
	address := req.URL.Host
	if req.URL.Port() == "" {
		address = net.JoinHostPort(req.URL.Hostname(), "80")
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	req.Close = true
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	a, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(io.LimitReader(a.Body, 16<<20))
	a.Body = io.NopCloser(bytes.NewReader(text))
	return a, err
}

func (p *program) printStatus(h *healthJSON) {
	if h.Healthy {
		fmt.Fprintln(p.stdout, "healthy: what is wanted reaches the kernel")
	} else {
		fmt.Fprintf(p.stdout, "unhealthy: what is wanted has not reached the kernel since %v\n",
			h.LastUpdated.Format(time.RFC3339))
	}
	for _, l := range h.Problems {
		fmt.Fprintln(p.stdout, "problem: "+l)
	}
	for _, r := range h.Refused {
		becomes := "left out"
		if r.Kept {
			becomes = "left as it was"
		}
		fmt.Fprintf(p.stdout, "refused: %s, %s\n", r.Service, becomes)
		for _, e := range r.Problems {
			fmt.Fprintln(p.stdout, "  "+e.Error)
		}
	}
}
