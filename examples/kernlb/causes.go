package main

import (
	"fmt"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// causes returns what says why a frontend of a table that was read from the kernel rejects or
// drops: by the manifests, if there are any.
func (p *program) causes() (func(*servicemodel.Table, *servicemodel.Frontend) string, error) {
	if len(p.opts.files) == 0 {
		return func(t *servicemodel.Table, f *servicemodel.Frontend) string {
			c := t.Cause(f)
			if c.Kind == servicemodel.CauseUnknown {
				return c.String() + "; with the manifests (-f), it is said why"
			}
			return c.String()
		}, nil
	}
	s, err := p.read()
	if err != nil {
		return nil, err
	}
	wanted, err := servicemodel.Resolve(nil, s)
	if err != nil {
		return nil, p.invalid(err)
	}
	return func(_ *servicemodel.Table, f *servicemodel.Frontend) string {
		c := wanted.Cause(f)
		if c.Kind == servicemodel.CauseUnknown {
			return "it is not up to date with the manifests"
		}
		return c.String()
	}, nil
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
