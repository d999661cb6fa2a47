package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/examples/command/instance"
	"github.com/kernlb/kernlb/servicemodel"
)

func showFlags(o *options, fs *flag.FlagSet) {
	fs.BoolVar(&o.show.diff, "diff", false, "what the kernel holds and the manifests (-f) do not "+
		"say, and the reverse; the exit code is 1 if there is anything")
	fs.BoolVar(&o.show.spread, "spread", false, "how each pool chooses among its endpoints: their "+
		"weights, the shares of new connections that they are to have, and those that they have")
	fs.BoolVar(&o.count.show, "counters", false, "what each frontend and endpoint has had, since "+
		"kernlb count; on ipvs since it is there")
	fs.BoolVar(&o.count.conntrack, "conntrack", false, "how many flows conntrack has of each "+
		"frontend and endpoint now, and their packets and bytes if the sysctl "+
		"net.netfilter.nf_conntrack_acct is on")
}

func checkShow(o *options) error {
	switch {
	case o.count.show && o.count.conntrack:
		return errors.New("-counters or -conntrack: show prints one of them")
	case o.show.spread && (o.show.diff || o.count.show || o.count.conntrack):
		return errors.New("-spread goes with none of -diff, -counters and -conntrack")
	case o.show.diff && len(o.files) == 0:
		return errors.New("-diff compares with manifests: it needs -f")
	}

	return nil
}

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
func (p *program) observe(ctx context.Context) (o *backends.Observation, err error) {
	p.findBackend(ctx)
	err = p.withEngine(ctx, servicemodel.State{}, nil, func(e *dataplane.Engine) error {
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
	silent := p.silent(ctx, o.Table)
	if p.opts.show.diff {
		if wanted, err = p.opts.show.filtered(wanted); err != nil {
			return err
		}
		return errors.Join(p.printDiff(o.Table, wanted, o.Drift), p.printSilent(silent))
	}

	if p.opts.show.spread {
		return errors.Join(p.printSpread(o.Table), p.printSilent(silent))
	}
	c, err := p.counted(ctx, o.Table)
	switch {
	case err != nil:
		return err
	case c != nil && p.opts.output != "json":
		return errors.Join(p.printCounts(o.Table, c), p.printSilent(silent))
	}

	var others []otherInstance
	if p.opts.instance == instance.Default {
		if others, err = p.otherInstances(ctx); err != nil {
			return err
		}
	}

	if p.opts.output == "json" {
		s := &shownJSON{Backend: p.opts.backend, Observation: o, Others: others, Silent: silent}
		for f := range o.Table.Frontends() {
			if text := cause(o.Table, f); text != "" {
				s.Causes = append(s.Causes, causeJSON{f.Key, text})
			}
		}

		if c != nil {
			s.Counters, s.OnlyConnections = c.rows, c.onlyConnections
		}
		return p.printJSON(s)
	}

	return errors.Join(p.printTable(o, cause), p.printSilent(silent), p.printInstances(others))
}

// shownJSON is the JSON output of show.
type shownJSON struct {
	Backend     string                `json:"backend"`
	Observation *backends.Observation `json:"observation"`
	Causes      []causeJSON           `json:"causes,omitempty"`
	Counters    []counters.Row        `json:"counters,omitempty"`
	// OnlyConnections says that the counters have neither packets nor bytes.
	OnlyConnections bool `json:"onlyConnections,omitempty"`
	// Others are the other instances that hold frontends, unless the flags name an instance.
	Others []otherInstance `json:"otherInstances,omitempty"`
	// Silent are the endpoints that the running program took out.
	Silent []silence.Change `json:"silent,omitempty"`
}

// causeJSON says why a frontend rejects or drops.
type causeJSON struct {
	Frontend servicemodel.FrontendKey `json:"frontend"`
	Cause    string                   `json:"cause"`
}

func (p *program) printTable(o *backends.Observation, cause causeOf) error {
	w := newColumns(p.stdout)
	if o.Table.Len() == 0 {
		fmt.Fprintln(w, p.opts.show.nothing())
	} else {
		fmt.Fprintln(w, "FRONTEND\tSERVICE\tKIND\tENDPOINTS\tMASQUERADE\tOTHER")
	}

	for f := range o.Table.Frontends() {
		var other []string
		if text := f.AffinityText(); text != "" {
			other = append(other, "affinity "+text)
		}
		if f.Sources != nil {
			list := strings.Trim(fmt.Sprint(f.Sources), "[]")
			other = append(other, "from "+strings.ReplaceAll(list, " ", ","))
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

// keyText returns "10.96.0.1:80/tcp" or "*:30080/tcp (IPv4)".
func keyText(k servicemodel.FrontendKey) string {
	if k.NodePort() {
		return fmt.Sprintf("*:%d/%v (%v)", k.Port, k.Protocol, k.Family())
	}
	return k.String()
}

// target returns the endpoints of a frontend, or its verdict if it has no endpoints.
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
		text := servicemodel.TargetText(s.Endpoint)
		if s.Weight != 1 {
			text += fmt.Sprintf("*%d", s.Weight)
		}
		l = append(l, text)
	}

	return strings.Join(l, ",")
}

// columns aligns cells that end with a tab. A tabwriter writes each cell and each gap separately:
// without a buffer, 10,000 services took a million system calls.
type columns struct {
	*tabwriter.Writer
	out *bufio.Writer
}

func newColumns(w io.Writer) columns {
	out := bufio.NewWriterSize(w, 64<<10)
	return columns{tabwriter.NewWriter(out, 0, 0, 2, ' ', 0), out}
}

// Flush writes all that is left.
func (c columns) Flush() error { return errors.Join(c.Writer.Flush(), c.out.Flush()) }
