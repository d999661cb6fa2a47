package main

import (
	"context"
	"flag"
	"fmt"
	"strings"

	"github.com/kernlb/kernlb/dataplane/graph"
	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/examples/command/instance"
	"github.com/kernlb/kernlb/servicemodel"
)

// graphOptions are the flags of graph.
type graphOptions struct {
	format string
	hooks  servicemodel.Family // 0: draw services
}

// formats are the formats of graphs.
var formats = map[string]func(*graph.Graph) string{"mermaid": (*graph.Graph).Mermaid,
	"dot": (*graph.Graph).DOT, "svg": (*graph.Graph).SVG}

func graphFlags(o *options, fs *flag.FlagSet) {
	choice(fs, &o.graph.format, "format", "`LANGUAGE` of the drawing: mermaid, dot, or svg, which "+
		"is a picture that needs nothing else", "mermaid", "dot", "svg")
	fs.Func("hooks", "draw the way of packets of a `FAMILY`, IPv4 or IPv6, through the chains of "+
		"nf_tables, ours and those of other programs, with what of these drops packets (default: "+
		"draw services)", func(s string) error {
		return o.graph.hooks.UnmarshalText([]byte(strings.Replace(s, "ip", "IP", 1)))
	})
}

// graph draws services, or hooks.
func (p *program) graph(ctx context.Context) error {
	if family := p.opts.graph.hooks; family != 0 {
		chains, err := hooks.Read(ctx, nil, p.opts.ownsTable)
		if err != nil {
			return err
		}
		ours := func(c *hooks.Chain) bool { return p.opts.ownsTable(c.Table) }
		return p.draw(graph.Hooks(chains, family, ours))
	}

	t, err := p.tableOf(ctx)
	if err != nil {
		return err
	}
	if err := p.knowsService(t); err != nil {
		return err
	}
	return p.draw(graph.Services(t, func(f *servicemodel.Frontend) bool {
		return p.opts.show.shows(t, f)
	}))
}

// ownsTable reports whether a table of nf_tables is the instance's.
func (o *options) ownsTable(table string) bool {
	return instance.Owns(o.instance)(table, "")
}

func (p *program) draw(g *graph.Graph) error {
	_, err := fmt.Fprint(p.stdout, formats[p.opts.graph.format](g))
	return err
}
