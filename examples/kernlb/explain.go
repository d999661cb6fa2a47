package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/servicemodel"
)

// explanation holds explain's knowledge of a service.
type explanation struct {
	*program
	name    servicemodel.Name
	state   servicemodel.State    // of the manifests
	service *servicemodel.Service // nil if no manifest has it
	wanted  *servicemodel.Table   // table of the manifests, nil if there are none
	held    *servicemodel.Table   // table of the kernel
	notes   []string              // drift, the reason of a refusal, addresses of other services
	out     []silence.Change      // endpoints that the running program took out
	objects []string              // in the kernel, in the words of the backend's reference tool
}

func explainFlags(o *options, fs *flag.FlagSet) {
	fs.StringVar(&o.object, "object", "", "say which service wants the objects of the kernel that "+
		"have `TEXT` in what explain prints of them, such as the name of a chain")
}

// checkExplain parses the service of explain.
func checkExplain(o *options) error {
	switch {
	case o.object != "" && o.about != "":
		return fmt.Errorf("explain is about -object, or about the service %s", o.about)
	case o.object == "" && o.explained.UnmarshalText([]byte("default/"+o.about)) == nil:
		return fmt.Errorf("explain needs a service: NAMESPACE/NAME, not %q; did you mean "+
			"default/%s?", o.about, o.about)
	case o.object == "" && o.explained.UnmarshalText([]byte(o.about)) != nil:
		return fmt.Errorf("explain needs a service: NAMESPACE/NAME, not %q", o.about)
	}

	return nil
}

// explain prints everything about a service on one screen.
func (p *program) explain(ctx context.Context) error {
	if p.opts.object != "" {
		return p.explainObject(ctx)
	}
	x := &explanation{program: p, name: p.opts.explained}
	if len(p.opts.files) > 0 {
		p.opts.goOn = true // problems of other services do not matter
		s, err := p.read()
		if err != nil {
			return err
		}
		x.state, x.service = s, s.Service(x.name)
	}

	p.findBackend(ctx)
	b, err := p.openBackend(ctx, x.state)
	if err != nil {
		return p.classify(err)
	}
	defer b.Close()
	if err := x.look(ctx, b); err != nil {
		return p.classify(err)
	}
	if x.service == nil && len(x.frontends(x.held)) == 0 {
		var names []string
		for s := range x.state.Services() {
			names = append(names, s.Name.String())
		}
		for _, n := range servicesOf(x.held) {
			names = append(names, n.String())
		}
		err := unknown("service", x.name.String(), names)
		if len(x.opts.files) == 0 {
			err = fmt.Errorf("in the kernel, %w (with -f, diagnose says why)", err)
		}
		return err
	}

	x.print()
	return nil
}

// look reads the service from the kernel, and plans its state.
func (x *explanation) look(ctx context.Context, b backends.Backend) error {
	e := dataplane.New(b, x.engineConfig())
	o, err := e.Observe(ctx)
	if err != nil {
		return err
	}
	x.held = o.Table
	x.out = slices.DeleteFunc(x.silent(ctx, x.held), func(c silence.Change) bool {
		return c.Service.Name != x.name
	})
	for _, d := range o.Drift {
		x.notes = append(x.notes, "the kernel differs: "+d)
	}
	for _, c := range x.out {
		x.notes = append(x.notes, silentText(c)+
			"; it is in again when it answers this node, or on trial after 30 s to 30 min")
	}
	if len(x.opts.files) > 0 {
		v, err := e.Plan(ctx, silence.Without(x.state, x.out))
		if err != nil {
			return err
		}
		x.wanted = v.Changes.New
		for _, r := range v.Refused {
			if r.Service == x.name {
				x.notes = append(x.notes, "refused: "+r.Err.Error())
			}
		}

		for _, c := range v.Conflicts {
			if c.Winner.Name == x.name || c.Loser.Name == x.name {
				x.notes = append(x.notes, "conflict: "+c.String()+"; "+whoWins)
			}
		}
	}

	if len(x.frontends(x.held)) == 0 {
		return nil
	}
	rest, err := partOf(x.held, func(f *servicemodel.Frontend) bool {
		return f.Service.Name != x.name
	})
	if err != nil {
		return err
	}
	x.objects, err = objectsOf(b, x.held, rest)
	return err
}

// frontends returns the frontends of the service in a table, by their keys.
func (x *explanation) frontends(
	t *servicemodel.Table) map[servicemodel.FrontendKey]*servicemodel.Frontend {
	m := map[servicemodel.FrontendKey]*servicemodel.Frontend{}
	for f := range t.Frontends() {
		if f.Service.Name == x.name {
			m[f.Key] = f
		}
	}

	return m
}

func (x *explanation) print() {
	fmt.Fprintln(x.stdout, x.name)
	if x.service != nil {
		x.printService(x.service)
	} else if len(x.opts.files) > 0 {
		fmt.Fprintln(x.stdout, "  no manifest has it")
	}

	for _, n := range x.notes {
		fmt.Fprintln(x.stdout, "  "+strings.ReplaceAll(n, "\n", "; "))
	}
	x.printFrontends()
	x.printSpread()
	if x.service != nil {
		x.printEndpoints()
	}
	if len(x.objects) > 0 {
		fmt.Fprintf(x.stdout, "\nKERNEL OBJECTS (%s), without those that it shares with others\n"+
			"%s\n", x.opts.backend, strings.Join(x.objects, "\n"))
	}
}

// printService prints the service itself, according to the manifests.
func (x *explanation) printService(s *servicemodel.Service) {
	for _, p := range s.Ports {
		node := ""
		if p.NodePort != 0 {
			node = fmt.Sprintf(", node port %d", p.NodePort)
		}
		number := strconv.Itoa(int(p.Port))
		if p.EndPort != 0 {
			number += "-" + strconv.Itoa(int(p.EndPort))
		}
		if p.TargetPort != 0 {
			number += fmt.Sprintf(" to %d-%d", p.TargetPort, p.TargetPort+(p.EndPort-p.Port))
		}
		fmt.Fprintf(x.stdout, "  port %s: %s/%v%s\n", cmp.Or(p.Name, `""`), number, p.Protocol,
			node)
	}

	fmt.Fprintf(x.stdout, "  internalTrafficPolicy %v, externalTrafficPolicy %v",
		cmp.Or(s.InternalTrafficPolicy, "Cluster"), cmp.Or(s.ExternalTrafficPolicy, "Cluster"))
	if text, err := s.SessionAffinity.MarshalText(); err == nil && s.SessionAffinity.ClientIP {
		fmt.Fprintf(x.stdout, ", sessionAffinity ClientIP (%s)", text)
	}
	if s.Scheduler != servicemodel.SchedulerDefault {
		fmt.Fprintf(x.stdout, ", scheduler %s", s.Scheduler)
	}
	if l := s.LoadBalancerSourceRanges; len(l) > 0 {
		fmt.Fprintf(x.stdout, ", source ranges %v", l)
	}
	fmt.Fprintln(x.stdout)
}

// printSpread prints how the pools spread new connections, those of the kernel if it holds the
// service. Pools that choose by default among equal endpoints need no words.
func (x *explanation) printSpread() {
	for pool := range cmp.Or(x.held, x.wanted).Pools() {
		weighted := func(s servicemodel.Slot) bool { return s.Weight != 1 }
		plain := pool.Scheduler == servicemodel.SchedulerDefault &&
			!slices.ContainsFunc(pool.Slots, weighted)
		if pool.ID.Service.Name == x.name && !plain {
			s := spreadOf(x.opts.backend, pool)
			fmt.Fprintln(x.stdout)
			s.print(x.stdout)
		}
	}
}

// printFrontends prints the wanted frontends, those in the kernel, and why they refuse connections.
func (x *explanation) printFrontends() {
	held, wanted := x.frontends(x.held), x.frontends(x.wanted)
	if len(x.opts.files) == 0 {
		wanted = held
	}
	all := maps.Clone(held)
	maps.Copy(all, wanted)
	if len(all) == 0 {
		return
	}
	w := newColumns(x.stdout)
	fmt.Fprintln(w, "\nFRONTEND\tPORT\tKIND\tKERNEL\tENDPOINTS")
	for _, k := range sortedKeys(all) {
		f, t, kernel := all[k], cmp.Or(x.wanted, x.held), "holds it"
		switch {
		case wanted[k] == nil:
			t, kernel = x.held, "holds it, not wanted"
		case held[k] == nil:
			kernel = "does not hold it"
		case x.wanted != nil && !sameWay(x.held, held[k], x.wanted, wanted[k]):
			kernel = "holds another: show -diff -f says which"
		}

		to := target(t, f)
		if cause := t.Cause(f); cause.Kind != "" {
			to += "; because " + cause.String()
		}
		fmt.Fprintf(w, "%s\t%s\t%v\t%s\t%s\n", keyText(f.Key),
			cmp.Or(f.Service.Port, `""`), f.Kind, kernel, to)
	}

	w.Flush()
}

func sortedKeys(
	m map[servicemodel.FrontendKey]*servicemodel.Frontend) []servicemodel.FrontendKey {
	return slices.SortedFunc(maps.Keys(m), servicemodel.FrontendKey.Compare)
}

// sameWay reports whether two tables balance a frontend alike.
func sameWay(t *servicemodel.Table, f *servicemodel.Frontend, u *servicemodel.Table,
	g *servicemodel.Frontend) bool {
	return f.Equal(g) && slices.EqualFunc(poolsOf(t, f), poolsOf(u, g), (*servicemodel.Pool).Equal)
}

// selections returns how the endpoints of the manifests are used. Those that are out are not.
func (x *explanation) selections(port servicemodel.PortName,
	f servicemodel.Family) []servicemodel.Selection {
	all := servicemodel.Select(x.state, port, f)
	for _, c := range x.out {
		for i := range all {
			if s := &all[i]; c.Service == port && c.Endpoint == s.Target {
				s.Cluster = c.Status(time.Now())
				s.Local = s.Cluster
			}
		}
	}

	return all
}

// hasLocal reports whether a traffic policy of the service is Local.
func (x *explanation) hasLocal() bool {
	return x.service.InternalTrafficPolicy == servicemodel.PolicyLocal ||
		x.service.ExternalTrafficPolicy == servicemodel.PolicyLocal
}

// printEndpoints prints each endpoint of the manifests, and how it is used.
func (x *explanation) printEndpoints() {
	all := x.state.Endpoints(x.name)
	uses := make([][2][]servicemodel.Selection, len(x.service.Ports)) // by port and family
	for i, p := range x.service.Ports {
		port := servicemodel.PortName{Name: x.name, Port: p.Name, Protocol: p.Protocol}
		uses[i] = [2][]servicemodel.Selection{x.selections(port, servicemodel.IPv4),
			x.selections(port, servicemodel.IPv6)}
	}

	w := newColumns(x.stdout)
	fmt.Fprintln(w, "\nENDPOINT\tCONDITION\tNODE\tZONE\tPORT")
	for i, e := range all {
		var ports []string
		for j, p := range x.service.Ports {
			of := uses[j][0]
			if servicemodel.FamilyOf(e.Addr) == servicemodel.IPv6 {
				of = uses[j][1]
			}
			use := of[i].Cluster // why it is not used
			if use == "" || of[i].Local == "" {
				use = fmt.Sprintf("is used at %d", of[i].Target.Port())
				if of[i].Target.Port() == 0 {
					use = "is used at the packet's port"
				}
				if of[i].Local != "" && x.hasLocal() {
					use += ", not where the policy is Local"
				}
			}

			ports = append(ports, cmp.Or(p.Name, `""`)+": "+use)
		}

		fmt.Fprintf(w, "%v\t%s\t%s\t%s\t%s\n", e.Addr, e.Condition, cmp.Or(e.Node, "-"),
			cmp.Or(e.Zone, "-"), strings.Join(ports, "; "))
	}

	w.Flush()
	if len(all) == 0 {
		io.WriteString(x.stdout, "none\n")
	}
}
