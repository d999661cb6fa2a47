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
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kernlb/kernlb/dataplane/checks"
	"github.com/kernlb/kernlb/servicemodel"
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
	return &FieldError{s.file, line, "", errors.New("not YAML: " + text[len(m[0]):])}
}

// At adds the path and the line of a field to an error.
func (f *File) At(path string, err error) error { return f.source.at(path, err) }

// InService adds the path and the line of a field to an error about a service. The field has the
// name that it has in the model or in a [backends.UnsupportedError]. If the file does not have it,
// the error gets the path of the service.
func (f *File) InService(name, field string, err error) error {
	i, ok := f.source.services[name]
	if !ok {
		return f.source.at("", err)
	}
	path := fmt.Sprintf("services[%d]", i)
	if at := path + f.Services[i].fieldOf(field); f.source.lines[at] > 0 {
		path = at
	}
	return f.source.at(path, err)
}

// validate finds contradictions between fields, and values that the model would refuse.
func (f *File) validate() {
	s := f.source
	s.must(len(f.Services) > 0, "services",
		"holds no service; -cleanup removes what the kernel has")
	s.timeout("tcp", f.Timeouts.TCP)
	s.timeout("tcpFin", f.Timeouts.TCPFin)
	s.timeout("udp", f.Timeouts.UDP)
	taken, devices := frontends{}, map[netip.Addr]string{}
	places := map[servicemodel.FrontendKey]string{} // paths
	for i := range f.Services {
		svc, path := &f.Services[i], fmt.Sprintf("services[%d]", i)
		if other, ok := s.services[svc.Name]; ok {
			s.twice(path+".name", fmt.Sprintf("a service %q", svc.Name),
				fmt.Sprintf("services[%d].name", other))
		}
		s.services[svc.Name] = i
		for j, a := range svc.Addresses {
			at, key := fmt.Sprintf("%s.addresses[%d]", path, j), svc.key(a)
			if first, ok := places[key]; ok {
				s.twice(at, key.String(), first)
			} else {
				places[key], taken[key] = at, svc.Name
			}
			if d := devices[a]; d != "" && svc.Device != "" && d != svc.Device {
				s.fail(path+".device", "%s is bound to the device %s for another service", a, d)
			}
			devices[a] = cmp.Or(devices[a], svc.Device)
		}
	}

	for i := range f.Services {
		f.Services[i].validate(s, fmt.Sprintf("services[%d]", i), taken)
	}
}

// frontends are the names of services by their frontends.
type frontends map[servicemodel.FrontendKey]string

// maxTimeout is less than the number of clock ticks that IPVS can count, at 1000 Hz.
const maxTimeout = 24 * 24 * time.Hour

// maxChecks bounds the checks of a service or backend, because each backend gets all of them.
const maxChecks = 64

// must notes a fault of a field unless ok.
func (s *source) must(ok bool, path, format string, args ...any) {
	if !ok {
		s.fail(path, format, args...)
	}
}

// timeout notes a fault of a timeout of IPVS that the kernel cannot have.
func (s *source) timeout(name string, d time.Duration) {
	s.must(d%time.Second == 0 && d <= maxTimeout, "timeouts."+name,
		"%v: must be whole seconds, at most %v", d, maxTimeout)
}

// faults notes the faults of checks.
func (s *source) faults(path string, list []Check) {
	s.must(len(list) <= maxChecks, path, "may hold %d checks", maxChecks)
	for i := range list {
		for _, e := range list[i].Validate() {
			s.fail(fmt.Sprintf("%s[%d].%s", path, i, e.Path), "%w", e.Err)
		}
	}
}

// validate finds the faults of a service.
func (svc *Service) validate(s *source, path string, taken frontends) {
	s.must(svc.Name != "", path+".name", "is missing")
	s.must(len(svc.Addresses) > 0, path+".addresses", "is missing")
	s.must(svc.Port != 0, path+".port", "is missing")
	s.must(len(svc.Backends) > 0, path+".backends", "is missing")
	s.must(svc.Affinity > 0 || svc.AffinityIPv4 == 0, path+".affinityIPv4", "needs affinity")
	s.must(svc.Affinity > 0 || svc.AffinityIPv6 == 0, path+".affinityIPv6", "needs affinity")
	s.faults(path+".checks", svc.Checks)
	seen := map[netip.AddrPort]bool{}
	for i := range svc.Backends {
		b, at := &svc.Backends[i], fmt.Sprintf("%s.backends[%d]", path, i)
		s.must(b.Address.IsValid(), at+".address", "is missing")
		svc.validateAddress(s, at+".address", b.Address)
		s.must(!seen[b.Address], at+".address", "%s is defined here a second time", b.Address)
		seen[b.Address] = true
		s.faults(at+".checks", b.Checks)
	}

	svc.validateTargets(s, path, taken)
	if len(svc.Backends) > 0 {
		svc.validateFamilies(s, path)
	}
	for i, a := range svc.Sorry {
		at := fmt.Sprintf("%s.sorry[%d]", path, i)
		s.must(!seen[a], at, "%s is a backend, too", a)
		svc.validateAddress(s, at, a)
	}

	if len(s.errs) == 0 {
		svc.validateModel(s, path)
	}
}

// validateFamilies finds addresses without a server of their family, and servers without an
// address.
func (svc *Service) validateFamilies(s *source, path string) {
	has, serves := map[bool]bool{}, map[bool]bool{} // by whether it is IPv4
	for _, a := range svc.Addresses {
		has[a.Is4()] = true
	}
	var servers []netip.AddrPort
	for i := range svc.Backends {
		servers = append(servers, svc.Backends[i].Address)
	}
	servers = append(servers, svc.Sorry...)
	for _, a := range servers {
		serves[a.Addr().Is4()] = true
	}
	for i, a := range svc.Addresses {
		s.must(serves[a.Is4()], fmt.Sprintf("%s.addresses[%d]", path, i),
			"%s: no backend is of its family", a)
	}

	for i, a := range servers {
		s.must(has[a.Addr().Is4()] || !a.IsValid() || len(serves) == 1,
			path+svc.fieldOf(fmt.Sprintf("endpoints[%d]", i)),
			"%s gets no connections: the service has no address of its family", a)
	}
}

// validateAddress finds the faults of the address of a backend or a sorry server.
func (svc *Service) validateAddress(s *source, at string, a netip.AddrPort) {
	s.must(a.Port() != 0 || !a.IsValid(), at, "%s has no port", a)
	s.must(!svc.key(a.Addr()).Contains(a.Port()) || !slices.Contains(svc.Addresses, a.Addr()), at,
		"%s is where the service itself answers", a)
	unchanged := []servicemodel.Forwarding{servicemodel.ForwardDirect, servicemodel.ForwardTunnel}
	s.must(a.Port() == svc.Port ||
		!slices.Contains(unchanged, servicemodel.Forwarding(svc.Forwarding)), at,
		"%s: the forwarding %s changes no port, so it must be %d", a, svc.Forwarding, svc.Port)
}

// validateTargets finds checks that cannot tell whether a backend works.
func (svc *Service) validateTargets(s *source, path string, taken frontends) {
	told := map[string]bool{} // a check with an address is the same for all backends
	for i := range svc.Backends {
		b, at := &svc.Backends[i], fmt.Sprintf("%s.backends[%d]", path, i)
		specs, of := svc.Checks, path
		if len(b.Checks) > 0 {
			specs, of = b.Checks, at
		}
		for j, t := range svc.Targets(b) {
			source := t.Check().Source
			s.must(!source.IsValid() || source.Is4() == t.Addr().Addr().Is4(),
				at+".address", "the check %s cannot come from the source %s", t, source)
			field := at + ".address"
			if specs[j].Address.IsValid() {
				field = fmt.Sprintf("%s.checks[%d].address", of, j)
			}
			asked := servicemodel.FrontendKey{Addr: t.Addr().Addr(), Protocol: protocolOf(t),
				Port: t.Addr().Port()}
			if other, ok := taken[asked]; ok && !told[field] {
				told[field] = true
				s.fail(field, "the check %s asks the balancer itself, where the service %q answers",
					t, other)
			}
		}
	}
}

// protocolOf returns the protocol of a check.
func protocolOf(t checks.Target) servicemodel.Protocol {
	if t.Check().Type == checks.UDP {
		return servicemodel.UDP
	}
	return servicemodel.TCP
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
