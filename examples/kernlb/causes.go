package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// wanted returns the table of the manifests, or nil without manifests.
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

// causeOf returns why a frontend of a table rejects or drops, or "" if it does neither.
type causeOf func(*servicemodel.Table, *servicemodel.Frontend) string

// causes returns the causes of frontends that were read from the kernel. With manifests, the causes
// come from these.
func causes(wanted *servicemodel.Table) causeOf {
	return func(t *servicemodel.Table, f *servicemodel.Frontend) string {
		c := cmp.Or(wanted, t).Cause(f)
		switch {
		case c.Kind != "unknown":
			return c.String()
		case wanted == nil:
			return c.String() + "; with the manifests (-f), it is said why"
		}

		return "it is not up to date with the manifests"
	}
}

// maxNotes is the maximum number of service ports that are named because they refuse connections.
const maxNotes = 20

// noteRefusing says which service ports of a table reject or drop connections, and why.
func (p *program) noteRefusing(table *servicemodel.Table) {
	at := map[string][]string{}
	var order []string
	for f := range table.Frontends() {
		cause := table.Cause(f)
		if cause.Kind == "" {
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
