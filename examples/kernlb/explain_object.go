package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// explainObject prints which services need an object of the kernel: without them the object would
// go. The user gives a part of the object's text, in the words of the backend's reference tool.
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
	s := &objectSearch{b, o.Table, p.opts.object}
	text, err := s.owners(servicesOf(o.Table))
	switch {
	case err != nil:
		return err
	case text == "":
		return fmt.Errorf("no service wants an object with %q in the kernel: it is none of the "+
			"instance %s of %s, or there for all services", s.text, p.opts.instance, p.opts.backend)
	}

	_, err = fmt.Fprint(p.stdout, text)
	return err
}

// objectSearch finds the services that need an object.
type objectSearch struct {
	backend backends.Backend
	held    *servicemodel.Table
	text    string
}

// owners returns which of the services need the object, each with the lines of a plan for it. It
// divides the list in halves, so it makes few plans if few services need it.
func (s *objectSearch) owners(names []servicemodel.Name) (string, error) {
	lines, err := s.only(names)
	if err != nil || len(lines) == 0 {
		return "", err
	}
	const most = 8
	title := names[0].String()
	if half := len(names) / 2; half > 0 {
		first, err := s.owners(names[:half])
		if err != nil {
			return "", err
		}
		second, err := s.owners(names[half:])
		if err != nil || first+second != "" {
			return first + second, err
		}
		for _, n := range names[1:min(most, len(names))] {
			title += ", " + n.String()
		}
		title = "shared among " + title
		if more := len(names) - most; more > 0 {
			title += fmt.Sprintf(" and %d more", more)
		}
	}

	return title + "\n  " + strings.Join(lines, "\n  ") + "\n", nil
}

// object matches a line of a plan that makes an object, in the words of nft or iptables-restore.
// table matches the line of iptables-restore that names the table. Each commit also makes an object
// with the number of commits, which belongs to no service.
var (
	object   = regexp.MustCompile(`^(add (element|rule|chain|set|map) |:|-[AaI] )`)
	table    = regexp.MustCompile(`^\*\w+$`)
	ofCommit = regexp.MustCompile(`^(add \w+ \S+ \S+ version-\w+ |:\S*-VERSION-\w+ )`)
)

// server matches a line of a plan that deletes a virtual server or a real server of IPVS.
var server = regexp.MustCompile(`^-([Dd]) (-[tuf]|--sctp-service) `)

// objectsOf returns the kernel's objects that rest does not need, one line each, in the words of
// the backend's reference tool. They are the objects that a commit would add to a kernel that holds
// only rest. IPVS compares plans with the kernel, so there a plan that deletes them lists them.
func objectsOf(b backends.Backend, held, rest *servicemodel.Table) ([]string, error) {
	plan, err := b.Plan(servicemodel.Diff(rest, held))
	if err != nil {
		return nil, err
	}
	lines := objectsIn(plan)
	if b.Name() != ipvs.Name {
		return lines, nil
	}
	if plan, err = b.Plan(servicemodel.Diff(held, rest)); err != nil {
		return nil, err
	}
	for l := range strings.Lines(plan.String()) {
		if m := server.FindStringSubmatch(l); m != nil {
			add := map[string]string{"D": "-A", "d": "-a"}[m[1]]
			lines = append(lines, add+strings.TrimSuffix(l[len("-D"):], "\n"))
		}
	}

	return lines, nil
}

// objectsIn returns the objects that a plan would make.
func objectsIn(plan backends.Plan) []string {
	var lines []string
	in := ""
	for l := range strings.Lines(plan.String()) {
		switch l = strings.TrimSuffix(l, "\n"); {
		case table.MatchString(l):
			in = l
		case object.MatchString(l) && !ofCommit.MatchString(l):
			if in != "" {
				lines = append(lines, in)
			}
			in, lines = "", append(lines, strings.TrimPrefix(l, "add "))
		}
	}

	return lines
}

// only returns the lines that have the text, of objects that exist for these services alone.
func (s *objectSearch) only(names []servicemodel.Name) ([]string, error) {
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
	lines, err := objectsOf(s.backend, s.held, rest)
	return slices.DeleteFunc(lines, func(l string) bool {
		return !strings.Contains(l, s.text)
	}), err
}
