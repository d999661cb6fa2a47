package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/examples/internal/instance"
	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/servicemodel"
)

// tableOf returns the table of the manifests, or without manifests the kernel's.
func (p *program) tableOf(ctx context.Context) (*servicemodel.Table, error) {
	if t, err := p.wanted(); t != nil || err != nil {
		return t, err
	}
	o, err := p.observe(ctx)
	if err != nil {
		return nil, err
	}
	return o.Table, nil
}

// observe reads the kernel, through the backend that the flags name or that findBackend finds.
func (p *program) observe(ctx context.Context) (o *dataplane.Observation, err error) {
	p.findBackend(ctx)
	err = p.withEngine(ctx, servicemodel.State{}, nil,
		func(ctx context.Context, e *dataplane.Engine) error {
			o, err = e.Observe(ctx)
			return err
		})
	return o, err
}

func (p *program) show(ctx context.Context) error {
	wanted, err := p.wanted()
	if err != nil {
		return err
	}
	o, err := p.observe(ctx)
	if err != nil {
		return err
	}
	cause := causes(wanted)
	if o.Table, err = p.opts.show.filtered(o.Table); err != nil {
		return err
	}
	if p.opts.show.diff {
		if wanted, err = p.opts.show.filtered(wanted); err != nil {
			return err
		}
		return p.printDiff(o.Table, wanted, o.Drift)
	}
	if p.opts.show.spread {
		return p.printSpread(o.Table)
	}
	c, err := p.counted(ctx, o.Table)
	switch {
	case err != nil:
		return err
	case c != nil && p.opts.output != "json":
		return p.printCounts(o.Table, c)
	}
	var others []otherInstance
	if p.opts.instance == instance.Default {
		if others, err = p.otherInstances(ctx); err != nil {
			return err
		}
	}
	if p.opts.output == "json" {
		shown := newShownJSON(p.opts.backend, o, cause, c)
		shown.Others = others
		return p.printJSON(shown)
	}
	return errors.Join(p.printTable(o, cause), p.printInstances(others))
}

// shownJSON is the JSON output of show.
type shownJSON struct {
	Backend     string                 `json:"backend"`
	Observation *dataplane.Observation `json:"observation"`
	Causes      []causeJSON            `json:"causes,omitempty"`
	Counters    []counters.Row         `json:"counters,omitempty"`
	// OnlyConnections says that the counters have neither packets nor bytes.
	OnlyConnections bool `json:"onlyConnections,omitempty"`
	// Others are the other instances that hold frontends, unless the flags name an instance.
	Others []otherInstance `json:"otherInstances,omitempty"`
}

func newShownJSON(backend string, o *dataplane.Observation, cause causeOf, c *counts) *shownJSON {
	s := &shownJSON{Backend: backend, Observation: o}
	for f := range o.Table.Frontends() {
		if text := cause(o.Table, f); text != "" {
			s.Causes = append(s.Causes, causeJSON{f.Key, text})
		}
	}
	if c != nil {
		s.Counters, s.OnlyConnections = c.rows, c.onlyConnections
	}
	return s
}

// causeJSON says why a frontend rejects or drops.
type causeJSON struct {
	Frontend servicemodel.FrontendKey `json:"frontend"`
	Cause    string                   `json:"cause"`
}

func (p *program) printTable(o *dataplane.Observation, cause causeOf) error {
	w := newColumns(p.stdout)
	fmt.Fprintln(w, "FRONTEND\tSERVICE\tKIND\tENDPOINTS\tMASQUERADE\tOTHER")
	for f := range o.Table.Frontends() {
		var other []string
		if text := nocopy.Of(o.Table).AffinityText(f); text != "" {
			other = append(other, "affinity "+text)
		}
		if f.Sources != nil {
			other = append(other, "from "+joined(f.Sources))
		}
		if text := cause(o.Table, f); text != "" {
			other = append(other, "because "+text)
		}
		fmt.Fprintf(w, "%s\t%v\t%v\t%s\t%v\t%s\n", keyText(f.Key), f.Service, f.Kind,
			target(o.Table, f), f.Masquerade, strings.Join(other, "; "))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, d := range o.Drift {
		fmt.Fprintf(p.stdout, "! %s\n", d)
	}
	return nil
}

func joined[T fmt.Stringer](l []T) string {
	texts := make([]string, len(l))
	for i, v := range l {
		texts[i] = v.String()
	}
	return strings.Join(texts, ",")
}

// keyText returns "10.96.0.1:80/tcp" or "*:30080/tcp (IPv4)".
func keyText(k servicemodel.FrontendKey) string {
	if k.NodePort() {
		return fmt.Sprintf("*:%d/%v (%v)", k.Port, k.Protocol, k.Family())
	}
	return k.String()
}

// target returns the endpoints that a frontend leads to, or its verdict if there are none.
func target(t *servicemodel.Table, f *servicemodel.Frontend) string {
	text := verdictText(t, f, f.Internal)
	if f.External != f.Internal {
		text += "; outside: " + verdictText(t, f, f.External)
	}
	return text
}

func verdictText(t *servicemodel.Table, f *servicemodel.Frontend, v servicemodel.Verdict) string {
	id, balances := f.Pool(v)
	pool := t.Pool(id)
	if !balances || pool == nil || len(pool.Slots) == 0 {
		return v.String()
	}
	var l []string
	for _, s := range pool.Slots {
		text := s.Endpoint.String()
		if s.Weight != 1 {
			text += fmt.Sprintf("*%d", s.Weight)
		}
		l = append(l, text)
	}
	return strings.Join(l, ",")
}
