package main

import (
	"context"
	"flag"
	"fmt"
	"strings"

	"github.com/kernlb/kernlb/dataplane/graph"
	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/servicemodel"
)

// graphOptions are the flags of graph.
type graphOptions struct {
	format string
	hooks  string
	family servicemodel.Family // of hooks
}

// formats are the formats of graphs.
var formats = map[string]func(*graph.Graph) string{"mermaid": (*graph.Graph).Mermaid,
	"dot": (*graph.Graph).DOT, "svg": (*graph.Graph).SVG}

func (o *options) graphFlags(fs *flag.FlagSet) func() error {
	g := &o.graph
	fs.StringVar(&g.format, "format", "mermaid", "`LANGUAGE` of the drawing: mermaid, dot, or "+
		"svg, which is a picture that needs nothing else")
	fs.StringVar(&g.hooks, "hooks", "", "draw the way of packets of a `FAMILY`, IPv4 or IPv6, "+
		"through the chains of nf_tables, ours and those of other programs, with what of these "+
		"drops packets (default: draw services)")
	return func() error {
		if formats[g.format] == nil {
			return fmt.Errorf("-format: %q: want mermaid, dot or svg", g.format)
		}
		if g.hooks == "" {
			return nil
		}
		family := strings.Replace(g.hooks, "ip", "IP", 1)
		if err := g.family.UnmarshalText([]byte(family)); err != nil {
			return fmt.Errorf("-hooks: %w", err)
		}
		return nil
	}
}

// graph draws services, or hooks.
func (p *program) graph(ctx context.Context) error {
	if p.opts.graph.hooks != "" {
		return p.graphHooks(ctx)
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

func (p *program) graphHooks(ctx context.Context) error {
	chains, err := hooks.Read(ctx, nil, p.ownsTable)
	if err != nil {
		return err
	}
	return p.draw(graph.Hooks(chains, p.opts.graph.family, func(c *hooks.Chain) bool {
		return p.ownsTable(c.Table)
	}))
}

// ownsTable reports whether a table of nf_tables is the instance's.
func (p *program) ownsTable(table string) bool {
	return table == p.opts.instance || table == p.opts.instance+"-ipvs"
}

func (p *program) draw(g *graph.Graph) error {
	_, err := fmt.Fprint(p.stdout, formats[p.opts.graph.format](g))
	return err
}
