package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/diagnose"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// diagnoseOptions are the flags of diagnose.
type diagnoseOptions struct {
	namespace netns.Namespace          // of the client
	source    netip.Addr               // of the client
	at        servicemodel.FrontendKey // what is diagnosed, if not a service
	preview   *dataplane.Preview       // of the manifests, nil without
}

func diagnoseFlags(o *options, fs *flag.FlagSet) {
	fs.Func("from", "the client: the name or the path of its network `NETNS`, or its address if "+
		"a namespace of this machine has it (default: this node itself, whose packets are not "+
		"forwarded)", func(s string) error {
		d := &o.diagnose
		if a, err := netip.ParseAddr(s); err == nil {
			d.source = a.Unmap()
			return nil
		}

		if !strings.Contains(s, "/") {
			s = "/run/netns/" + s
		}
		d.namespace = netns.Namespace(s)
		return nil
	})
}

// checkDiagnose parses the service, or the address and port.
func checkDiagnose(o *options) error {
	if o.explained.UnmarshalText([]byte(o.about)) == nil && strings.Contains(o.about, "/") &&
		!strings.Contains(o.about, ":") {
		return nil
	}

	text := o.about
	if !strings.Contains(text, "/") {
		text += "/tcp"
	}
	o.explained = servicemodel.Name{}
	if o.diagnose.at.UnmarshalText([]byte(text)) != nil || o.diagnose.at.NodePort() {
		return fmt.Errorf("diagnose needs a service, NAMESPACE/NAME, or ADDRESS:PORT/PROTOCOL, "+
			"not %q", o.about)
	}

	return nil
}

// errFault says that diagnose found something.
var errFault = errors.New("something is wrong: see above")

// diagnose walks what a connection of a client needs, and names the first thing that is wrong.
func (p *program) diagnose(ctx context.Context) error {
	cfg, err := p.diagnosis(ctx)
	if err != nil {
		return err
	}
	lost := p.lost()
	targets, err := p.targets(cfg)
	if err != nil && len(lost) == 0 {
		return err
	}
	var reports []*diagnose.Report
	var text strings.Builder
	for _, to := range targets {
		cfg.To = to
		r, err := diagnose.Run(ctx, cfg)
		if err != nil {
			return err
		}
		reports = append(reports, r)
		fmt.Fprint(&text, r)
		if r.Fault != nil {
			lost = nil
			break
		}
	}

	for _, r := range lost {
		reports = append(reports, r)
		fmt.Fprint(&text, r)
	}

	if err := p.print(reports, text.String()); err != nil {
		return err
	}
	if reports[len(reports)-1].Fault != nil {
		return errFault
	}
	return nil
}

// diagnosis reads the kernel, and plans the manifests.
func (p *program) diagnosis(ctx context.Context) (*diagnose.Config, error) {
	var state servicemodel.State
	if len(p.opts.files) > 0 {
		p.opts.goOn = true // problems of other services do not matter
		var err error
		if state, err = p.read(); err != nil {
			return nil, err
		}
	}

	p.findBackend(ctx)
	b, err := p.openBackend(ctx, state)
	if err != nil {
		return nil, p.classify(err)
	}
	defer b.Close()
	e := dataplane.New(b, p.engineConfig())
	o, err := e.Observe(ctx)
	if err != nil {
		return nil, p.classify(err)
	}
	here, err := p.locality()
	if err != nil {
		return nil, err
	}
	d := &p.opts.diagnose
	cfg := &diagnose.Config{Table: o.Table, Here: here, Drift: o.Drift, Ours: p.opts.owns,
		From: d.namespace, Source: d.source, Direct: b.Name() == ipvs.Name,
		Silent: p.silent(ctx, o.Table)}
	if len(p.opts.files) > 0 {
		v, err := e.Plan(ctx, silence.Without(state, cfg.Silent))
		if err != nil {
			return nil, p.classify(err)
		}
		cfg.Wanted, d.preview = v.Changes.New, v
	}

	if d.source.IsValid() && d.namespace == "" && !cfg.Here.Local(d.source) {
		cfg.From, err = diagnose.FindNamespace(d.source)
	}
	return cfg, err
}

// lost returns a report for each address that the service lost to another service, or for the
// refusal of the service.
func (p *program) lost() (l []*diagnose.Report) {
	add := func(to servicemodel.FrontendKey, kind diagnose.Kind, says, do string) {
		l = append(l, &diagnose.Report{To: to, Steps: []string{}, Fault: &diagnose.Fault{Kind: kind,
			Says: says, Do: do}})
	}
	if p.opts.diagnose.preview == nil {
		return nil
	}
	for _, r := range p.opts.diagnose.preview.Refused {
		if r.Service == p.opts.explained && r.Service != (servicemodel.Name{}) {
			add(servicemodel.FrontendKey{}, diagnose.NotProgrammed, fmt.Sprintf("the service is "+
				"refused: %v", r.Err), "correct the service, or use another backend")
		}
	}

	for _, c := range p.opts.diagnose.preview.Conflicts {
		if c.Loser.Name == p.opts.explained {
			add(c.Key, diagnose.Conflict, fmt.Sprintf("%v has %v, so %v does not get it", c.Winner,
				c.Key, c.Loser), "give one of the services another address or port; "+whoWins)
		}
	}

	return l
}

// targets returns the frontends to diagnose: one of each port of the service.
func (p *program) targets(cfg *diagnose.Config) ([]servicemodel.FrontendKey, error) {
	if at := p.opts.diagnose.at; at.Port != 0 {
		return []servicemodel.FrontendKey{at}, nil
	}
	name := p.opts.explained
	all := slices.Concat(cfg.Table.FrontendsOfService(name), cfg.Wanted.FrontendsOfService(name))
	slices.SortStableFunc(all, func(f, g *servicemodel.Frontend) int {
		return cmp.Or(p.preference(f)-p.preference(g), f.Key.Compare(g.Key))
	})
	var l []servicemodel.FrontendKey
	done := map[servicemodel.PortName]bool{}
	for _, f := range all {
		if done[f.Service] || p.opts.diagnose.source.IsValid() &&
			f.Key.Addr.Is4() != p.opts.diagnose.source.Is4() {
			continue
		}

		done[f.Service] = true
		key := f.Key
		if key.NodePort() {
			i := slices.IndexFunc(cfg.Here, func(a netip.Addr) bool {
				return a.Is4() == key.Addr.Is4() && a.IsGlobalUnicast()
			})
			if i < 0 {
				continue
			}
			key.Addr = cfg.Here[i]
		}

		l = append(l, key)
	}

	if len(l) > 0 {
		return l, nil
	}
	var names []string
	for _, n := range append(servicesOf(cfg.Table), servicesOf(cfg.Wanted)...) {
		names = append(names, n.String())
	}
	return nil, unknown("service", name.String(), names)
}

// preference orders the frontends of a service: cluster IPs before other addresses before node
// ports, and IPv4 before IPv6.
func (p *program) preference(f *servicemodel.Frontend) (n int) {
	if f.Key.NodePort() {
		n += 4
	}
	if f.Kind != servicemodel.ClusterIP {
		n += 2
	}
	if f.Key.Addr.Is6() {
		n++
	}
	return n
}
