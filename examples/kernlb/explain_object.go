package main

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// explainObject says which services want an object of the kernel, by a part of its text in the
// words of the backend's reference tool: the services without which it would go.
func (p *program) explainObject(ctx context.Context) error {
	p.findBackend(ctx)
	b, err := p.openBackend(ctx, servicemodel.State{})
	if err != nil {
		return p.classify(err)
	}
	defer b.Close()
	o, err := dataplane.New(b, p.engineConfig()).Observe(ctx)
	if err != nil {
		return p.classify(err)
	}
	names := map[servicemodel.Name]bool{}
	for f := range o.Table.Frontends() {
		names[f.Service.Name] = true
	}
	s := &objectSearch{b, o.Table, p.opts.object}
	owners, err := s.owners(slices.SortedFunc(maps.Keys(names), compareNames))
	if err != nil {
		return err
	}
	if len(owners) == 0 {
		return fmt.Errorf("no service wants an object with %q in the kernel: it is none of the "+
			"instance %s of %s, or there for all services", s.text, p.opts.instance, p.opts.backend)
	}
	for _, owner := range owners {
		fmt.Fprintf(p.stdout, "%s\n", owner.services)
		for _, l := range owner.lines {
			fmt.Fprintf(p.stdout, "  %s\n", l)
		}
	}
	return nil
}

func compareNames(a, b servicemodel.Name) int { return strings.Compare(a.String(), b.String()) }

// objectSearch looks for the services that want an object.
type objectSearch struct {
	backend dataplane.Backend
	held    *servicemodel.Table
	text    string
}

// owner is a service that wants objects, or several that share them.
type owner struct {
	services string
	lines    []string
}

// owners returns which of the services want the object. It divides them, so that it asks for few
// plans where few services do.
func (s *objectSearch) owners(names []servicemodel.Name) ([]owner, error) {
	lines, err := s.without(names)
	if err != nil || len(lines) == 0 {
		return nil, err
	}
	if len(names) == 1 {
		return []owner{{names[0].String(), lines}}, nil
	}
	half := len(names) / 2
	first, err := s.owners(names[:half])
	if err != nil {
		return nil, err
	}
	second, err := s.owners(names[half:])
	if err != nil {
		return nil, err
	}
	if l := append(first, second...); len(l) > 0 {
		return l, nil
	}
	return []owner{{sharedBy(names), lines}}, nil
}

// sharedBy names services that want an object together.
func sharedBy(names []servicemodel.Name) string {
	const most = 8
	var l []string
	for _, n := range names[:min(most, len(names))] {
		l = append(l, n.String())
	}
	text := "shared among " + strings.Join(l, ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// removal is a line that takes something away, in the words of nft, iptables-restore or ipvsadm:
// what is wanted by others may be written anew in the same plan.
var removal = regexp.MustCompile(`^(delete|flush|-[DFXd]|ipvsadm -[Dd]) `)

// without returns the lines with the text of what would be sent to remove services.
func (s *objectSearch) without(names []servicemodel.Name) ([]string, error) {
	gone := map[servicemodel.Name]bool{}
	for _, n := range names {
		gone[n] = true
	}
	rest, err := partOf(s.held, func(f *servicemodel.Frontend) bool {
		return !gone[f.Service.Name]
	})
	if err != nil {
		return nil, err
	}
	plan, err := s.backend.Plan(servicemodel.Diff(s.held, rest))
	if err != nil {
		return nil, err
	}
	var lines []string
	for l := range strings.Lines(plan.String()) {
		if removal.MatchString(l) && strings.Contains(l, s.text) {
			lines = append(lines, strings.TrimSuffix(l, "\n"))
		}
	}
	return lines, nil
}
