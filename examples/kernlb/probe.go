package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
)

// probe prints which backends this kernel supports for this process, and why not the others.
func (p *program) probe(ctx context.Context) error {
	type row struct {
		Backend   string `json:"backend"`
		Supported bool   `json:"supported"`
		Reason    string `json:"reason,omitempty"`
	}
	var rows []row
	var text strings.Builder
	w := newColumns(&text)
	fmt.Fprintln(w, "BACKEND\tSUPPORTED\tWHY NOT")
	found := false
	for _, s := range dataplane.Probe(ctx, p.opts.candidates()...) {
		r, yes := row{Backend: s.Backend, Supported: s.Err == nil}, "yes"
		if s.Err != nil {
			r.Reason, yes = strings.ReplaceAll(s.Err.Error(), "\n", "; "), "no"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", r.Backend, yes, r.Reason)
		rows, found = append(rows, r), found || r.Supported
	}

	w.Flush()
	if err := p.print(rows, text.String()); err != nil || found {
		return err
	}
	return errors.New("no backend is supported here")
}
