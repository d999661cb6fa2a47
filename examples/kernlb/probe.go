package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
)

// supported is one backend in the output of probe.
type supported struct {
	Backend   string `json:"backend"`
	Supported bool   `json:"supported"`
	Reason    string `json:"reason,omitempty"`
}

// probe prints which backends this kernel supports for this process, and why not the others.
func (p *program) probe(ctx context.Context) error {
	var rows []supported
	any := false
	for _, s := range dataplane.Probe(ctx, p.opts.candidates()...) {
		r := supported{Backend: s.Backend, Supported: s.Err == nil}
		if s.Err != nil {
			r.Reason = strings.ReplaceAll(s.Err.Error(), "\n", "; ")
		}
		rows, any = append(rows, r), any || r.Supported
	}
	if err := p.printSupport(rows); err != nil {
		return err
	}
	if !any {
		return fmt.Errorf("no backend is supported here")
	}
	return nil
}

func (p *program) printSupport(rows []supported) error {
	if p.opts.output == "json" {
		return p.printJSON(rows)
	}
	w := newColumns(p.stdout)
	fmt.Fprintln(w, "BACKEND\tSUPPORTED\tWHY NOT")
	for _, r := range rows {
		yes := "no"
		if r.Supported {
			yes = "yes"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", r.Backend, yes, r.Reason)
	}
	return w.Flush()
}
