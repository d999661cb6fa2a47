package main

import (
	"fmt"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// wanted returns what the manifests mean, nil if there are none.
func (p *program) wanted() (*servicemodel.Table, error) {
	if len(p.opts.files) == 0 {
		return nil, nil
	}
	s, err := p.read()
	if err != nil {
		return nil, err
	}
	t, err := servicemodel.Resolve(nil, s)
	if err != nil {
		return nil, p.invalid(err)
	}
	return t, nil
}

// causes returns what says why a frontend of a table that was read from the kernel rejects or
// drops: by the manifests, if there are any.
func causes(wanted *servicemodel.Table) func(*servicemodel.Table, *servicemodel.Frontend) string {
	if wanted == nil {
		return func(t *servicemodel.Table, f *servicemodel.Frontend) string {
			c := t.Cause(f)
			if c.Kind == servicemodel.CauseUnknown {
				return c.String() + "; with the manifests (-f), it is said why"
			}
			return c.String()
		}
	}
	return func(_ *servicemodel.Table, f *servicemodel.Frontend) string {
		c := wanted.Cause(f)
		if c.Kind == servicemodel.CauseUnknown {
			return "it is not up to date with the manifests"
		}
		return c.String()
	}
}

// maxNotes is how many service ports are named that refuse connections.
const maxNotes = 20

// noteRefusing says which service ports of a state reject or drop connections, and why.
func (p *program) noteRefusing(s servicemodel.State) {
	table, err := servicemodel.Resolve(nil, s)
	if err != nil {
		return // with -keep-going, of which the engine tells
	}
	at := map[string][]string{}
	var order []string
	for f := range table.Frontends() {
		cause := table.Cause(f)
		if cause.Kind == servicemodel.NoCause {
			continue
		}
		verb, from := "rejects", ""
		if f.External == servicemodel.Drop {
			verb = "drops"
		}
		if f.Internal != f.External {
			from = " from outside"
		}
		about := fmt.Sprintf("%v %s connections%s: %v", f.Service, verb, from, cause)
		if at[about] == nil {
			order = append(order, about)
		}
		at[about] = append(at[about], f.Key.String())
	}
	for i, about := range order {
		if i == maxNotes {
			p.warn("note: %d more reject or drop connections; kernlb show tells which",
				len(order)-i)
			return
		}
		p.warn("note: %s (%s)", about, strings.Join(at[about], ", "))
	}
}
