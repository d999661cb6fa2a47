package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/graph"
)

// graphOptions are the flags of graph.
type graphOptions struct {
	format string
	hooks  string
	family servicemodel.Family // of hooks
}

func (o *graphOptions) define(fs *flag.FlagSet) {
	fs.StringVar(&o.format, "format", "mermaid",
		"graph: `LANGUAGE` of the drawing: mermaid, dot, or svg, which is a picture that needs "+
			"nothing else")
	fs.StringVar(&o.hooks, "hooks", "",
		"graph: draw the way of packets of a `FAMILY`, IPv4 or IPv6, through the chains of "+
			"nf_tables, ours and those of other programs, with what of these drops packets "+
			"(default: draw services)")
}

// formats are what graphs can be written as.
var formats = map[string]func(*graph.Graph) string{"mermaid": (*graph.Graph).Mermaid,
	"dot": (*graph.Graph).DOT, "svg": (*graph.Graph).SVG}

// check reads the flags.
func (o *graphOptions) check() error {
	if formats[o.format] == nil {
		return fmt.Errorf("-format: %q: want mermaid, dot or svg", o.format)
	}
	if o.hooks == "" {
		return nil
	}
	if err := o.family.UnmarshalText([]byte(o.hooks)); err != nil {
		return fmt.Errorf("-hooks: %w", err)
	}
	return nil
}

// graph draws services, or hooks.
func (p *program) graph(ctx context.Context) error {
	if p.opts.graph.hooks != "" {
		return p.graphHooks(ctx)
	}
	if len(p.opts.files) > 0 {
		s, err := p.read()
		if err != nil {
			return err
		}
		table, err := servicemodel.Resolve(nil, s)
		if err != nil {
			return p.invalid(err)
		}
		return p.graphServices(table)
	}
	p.findBackend(ctx)
	return p.withEngine(ctx, servicemodel.State{},
		func(ctx context.Context, e *dataplane.Engine) error {
			o, err := e.Observe(ctx)
			if err != nil {
				return err
			}
			return p.graphServices(o.Table)
		})
}

func (p *program) graphServices(t *servicemodel.Table) error {
	if err := p.knowsService(t); err != nil {
		return err
	}
	return p.draw(graph.Services(t, func(f *servicemodel.Frontend) bool {
		return p.opts.show.shows(t, f)
	}))
}

func (p *program) graphHooks(ctx context.Context) error {
	r, err := hooks.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	chains, err := r.Read(ctx, p.ownsTable)
	if err != nil {
		return err
	}
	return p.draw(graph.Hooks(chains, p.opts.graph.family, func(c *graph.Chain) bool {
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
