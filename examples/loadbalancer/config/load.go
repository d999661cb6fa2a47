package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/kernlb/kernlb/examples/loadbalancer/check"
)

// Load reads a file. The error joins a *[FieldError] for each fault.
func Load(name string) (*File, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return Parse(name, text)
}

// Encode returns the text of a file, for [Parse]. It leaves out fields with their zero value.
func (f *File) Encode() ([]byte, error) { return yaml.Marshal(f) }

// Parse reads the text of a file. The name is for errors.
func Parse(name string, text []byte) (*File, error) {
	s := &source{file: name, lines: map[string]int{}, services: map[string]int{},
		left: len(text) + maxAliased}
	in := yaml.NewDecoder(bytes.NewReader(text))
	var root, more yaml.Node
	if err := in.Decode(&root); errors.Is(err, io.EOF) {
		return nil, &FieldError{name, 0, "", errors.New("is empty")}
	} else if err != nil {
		return nil, s.syntax(err)
	}
	if err := in.Decode(&more); err == nil {
		return nil, &FieldError{name, more.Line, "", errors.New("a second document: want one")}
	} else if !errors.Is(err, io.EOF) {
		return nil, s.syntax(err)
	}
	f := &File{source: s}
	s.decode(root.Content[0], reflect.ValueOf(f).Elem(), "")
	if len(s.errs) == 0 {
		f.validate()
	}
	if len(s.errs) > 0 {
		return nil, s.joined()
	}
	return f, nil
}

// yamlLine matches the line in errors of the library.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// syntax moves the line in the library's error to the front.
func (s *source) syntax(err error) error {
	text := err.Error()
	m := yamlLine.FindStringSubmatch(text)
	if m == nil {
		return &FieldError{s.file, 0, "", err}
	}
	line, _ := strconv.Atoi(m[1])
	return &FieldError{s.file, line, "", errors.New(text[len(m[0]):])}
}

// InService adds a line to an error about a service: the line of the field with that name, or of
// the service if it has no such field.
func (f *File) InService(name, field string, err error) error {
	i, ok := f.source.services[name]
	if !ok {
		return &FieldError{f.source.file, 0, "", err}
	}
	path := fmt.Sprintf("services[%d]", i)
	if _, ok := f.source.lines[path+"."+field]; ok {
		path += "." + field
	}
	return f.source.at(path, err)
}

// validate finds contradictions between fields, and values that the model would refuse.
func (f *File) validate() {
	s := f.source
	s.must(len(f.Services) > 0, "services",
		"holds no service; -cleanup removes what the kernel has")
	taken, devices := map[string]string{}, map[netip.Addr]string{}
	for i := range f.Services {
		svc, path := &f.Services[i], fmt.Sprintf("services[%d]", i)
		if _, ok := s.services[svc.Name]; ok {
			s.fail(path+".name", "there is another service %q", svc.Name)
		}
		s.services[svc.Name] = i
		for j, a := range svc.Addresses {
			at := fmt.Sprintf("%s/%s", netip.AddrPortFrom(a, svc.Port), svc.protocol())
			if other, ok := taken[at]; ok {
				s.fail(fmt.Sprintf("%s.addresses[%d]", path, j), "%s is also that of %q", at, other)
			}
			taken[at] = svc.Name
			if d := devices[a]; d != "" && svc.Device != "" && d != svc.Device {
				s.fail(path+".device", "%s is bound to the device %s for another service", a, d)
			}
			devices[a] = cmp.Or(devices[a], svc.Device)
		}
		svc.validate(s, path)
	}
}

// maxChecks bounds the checks of a service or backend, because each backend gets all of them.
const maxChecks = 64

// must notes a fault of a field unless ok.
func (s *source) must(ok bool, path, format string, args ...any) {
	if !ok {
		s.fail(path, format, args...)
	}
}

// faults notes the faults of a check.
func (s *source) faults(path string, errs []*check.FieldError) {
	for _, e := range errs {
		s.fail(path+"."+e.Field, "%w", e.Err)
	}
}

// validate finds the faults of a service.
func (svc *Service) validate(s *source, path string) {
	s.must(svc.Name != "", path+".name", "is missing")
	s.must(len(svc.Addresses) > 0, path+".addresses", "is missing")
	s.must(svc.Port != 0, path+".port", "is missing")
	s.must(len(svc.Checks) <= maxChecks, path+".checks", "may hold %d checks", maxChecks)
	for i := range svc.Checks {
		s.faults(fmt.Sprintf("%s.checks[%d]", path, i), svc.Checks[i].Validate())
	}
	families := map[bool]bool{}
	seen := map[netip.AddrPort]bool{}
	for i := range svc.Backends {
		b, at := &svc.Backends[i], fmt.Sprintf("%s.backends[%d]", path, i)
		s.must(b.Address.IsValid(), at+".address", "is missing")
		s.must(!svc.answersAt(b.Address), at+".address", "%s is where the service itself answers",
			b.Address)
		s.must(!seen[b.Address], at+".address", "%s stands here a second time", b.Address)
		seen[b.Address], families[b.Address.Addr().Is4()] = true, true
		s.must(len(b.Checks) <= maxChecks, at+".checks", "may hold %d checks", maxChecks)
		for j := range b.Checks {
			s.faults(fmt.Sprintf("%s.checks[%d]", at, j), b.Checks[j].Validate())
		}
		for _, t := range svc.Targets(b) {
			s.must(!t.Spec.Source.IsValid() || t.Spec.Source.Is4() == t.Addr.Addr().Is4(),
				at+".address", "the check %s cannot come from the source %s", t, t.Spec.Source)
		}
	}
	for i, a := range svc.Sorry {
		at := fmt.Sprintf("%s.sorry[%d]", path, i)
		s.must(!seen[a], at, "%s is a backend, too", a)
		s.must(!svc.answersAt(a), at, "%s is where the service itself answers", a)
		families[a.Addr().Is4()] = true
	}
	for i, a := range svc.Addresses {
		s.must(families[a.Is4()], fmt.Sprintf("%s.addresses[%d]", path, i),
			"%s: no backend is of its family", a)
	}
	if len(s.errs) == 0 {
		svc.validateModel(s, path)
	}
}

// answersAt reports whether an address and port is a frontend of the service.
func (svc *Service) answersAt(a netip.AddrPort) bool {
	return a.Port() == svc.Port && slices.Contains(svc.Addresses, a.Addr())
}

// joined returns the errors that err joins.
func joined(err error) []error {
	if err == nil {
		return nil
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		return many.Unwrap()
	}
	return []error{err}
}
