package keepalived

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/examples/loadbalancer/config"
)

// converter turns statements into a file.
type converter struct {
	file     string
	reader   *reader
	files    map[string]int // their order
	groups   map[string]*statement
	grammar  map[place]rule
	told     map[string]bool // texts of changes
	out      config.File
	origins  map[string]*statement // of fields of the file
	names    map[string]int        // how often services wanted a name
	warnings []*config.FieldError
	changes  []*config.FieldError
	errs     []*config.FieldError
	// unchecked are the servers whose checks were left out.
	unchecked []string
}

// Result is a converted configuration.
type Result struct {
	File []byte
	// Warnings name parts that the file leaves out, and Changes name parts that work differently
	// from keepalived. Both are *[config.FieldError] values in the order of their lines. Their path
	// is a keyword.
	Warnings, Changes []error
	// Unchecked are the servers that are always up, because their checks were left out.
	Unchecked []string

	converter *converter
}

// From returns the place of the statement from which a field of the file was made, such as
// "keepalived.conf:7" for services[0].scheduler.
func (r *Result) From(path string) string {
	s := r.converter.madeFrom(path)
	return fmt.Sprintf("%s:%d", cmp.Or(s.file, r.converter.file), s.line)
}

// Convert converts the text of a configuration. The name is for errors and warnings, and includes
// are relative to it. Errors are *[config.FieldError] values whose path is a keyword. With an
// error, the result has no file.
func Convert(name, text string, how *Config) (*Result, error) {
	in := newReader(how)
	if err := in.read(name, text, 0); err != nil {
		return &Result{}, err
	}
	c := &converter{file: name, reader: in, files: in.files, warnings: in.notes,
		grammar: newGrammar(),
		groups:  map[string]*statement{}, told: map[string]bool{},
		origins: map[string]*statement{}, names: map[string]int{}}
	all, at, err := parse(in.lines)
	if err != nil {
		return &Result{}, &config.FieldError{File: at.file, Line: at.line, Err: err}
	}
	if len(all) > 0 && strings.HasPrefix(strings.Join(all[0].words, " "), "IP Virtual Server") {
		return &Result{}, &config.FieldError{File: name,
			Err: errors.New("this is what ipvsadm -L prints: want the output of ipvsadm-save -n")}
	}
	if isSaved(all) {
		all = c.saved(all)
	}
	c.top(all)
	if len(c.errs) == 0 && len(c.out.Services) > 0 {
		c.checkVirtual()
	}
	r := &Result{Warnings: c.inOrder(c.warnings), Unchecked: c.unchecked, converter: c}
	if len(c.errs) > 0 {
		return r, errors.Join(c.inOrder(c.errs)...)
	}
	if len(c.out.Services) == 0 {
		return r, &config.FieldError{File: name,
			Err: errors.New("has no virtual_server, so there is nothing to balance")}
	}
	out, err := c.out.Encode()
	if err != nil {
		return r, err
	}
	if _, err := config.Parse("the file", out); err != nil {
		return r, c.impossible(err)
	}
	r.File, r.Changes = out, c.inOrder(c.changes)
	return r, nil
}

// impossible returns the faults of the file that was made, each with the statement that caused it.
func (c *converter) impossible(err error) error {
	for _, p := range dataplane.Problems(err) {
		of := &config.FieldError{}
		if !errors.As(p.Err, &of) {
			return err
		}
		s, twice := c.madeFrom(of.Path), (*config.TwiceError)(nil)
		if errors.As(of.Err, &twice) {
			of.Err = fmt.Errorf("%s is declared at %s already", twice.What,
				c.madeFrom(twice.Path).from(s))
		}
		c.fail(s, "%w", of.Err)
	}

	return errors.Join(c.inOrder(c.errs)...)
}

// madeFrom returns the statement from which a field of the file, or the field around it, was made.
func (c *converter) madeFrom(path string) *statement {
	for {
		if s := c.origins[path]; s != nil || path == "" {
			return cmp.Or(s, &statement{words: []string{"the file"}})
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
}

// checkVirtual warns about checks at virtual addresses. In keepalived, marks and routes can lead
// them to the server.
func (c *converter) checkVirtual() {
	virtual := map[netip.Addr]bool{}
	for _, s := range c.out.Services {
		for _, a := range s.Addresses {
			virtual[a] = true
		}
	}

	for i, s := range c.out.Services {
		for j, b := range s.Backends {
			for k, spec := range b.Checks {
				if virtual[spec.Address.Addr] {
					c.warn(c.madeFrom(fmt.Sprintf("services[%d].backends[%d].checks[%d]", i, j, k)),
						"it asks the virtual address %s, which is this host and not the server",
						spec.Address)
				}
			}
		}
	}
}

// inOrder returns messages in the order of their files and lines.
func (c *converter) inOrder(l []*config.FieldError) []error {
	slices.SortStableFunc(l, func(a, b *config.FieldError) int {
		return cmp.Or(cmp.Compare(c.files[a.File], c.files[b.File]), cmp.Compare(a.Line, b.Line))
	})
	out := make([]error, len(l))
	for i, e := range l {
		out[i] = e
	}
	return out
}

// at returns a message about a statement.
func (c *converter) at(s *statement, format string, args ...any) *config.FieldError {
	return &config.FieldError{File: cmp.Or(s.file, c.file), Line: s.line,
		Path: cmp.Or(s.option, s.keyword()), Err: fmt.Errorf(format, args...)}
}

// from returns the place of a statement, for a message about another statement.
func (s *statement) from(other *statement) string {
	if s.file == other.file {
		return fmt.Sprintf("line %d", s.line)
	}
	return fmt.Sprintf("%s:%d", s.file, s.line)
}

// warn notes a part that is left out.
func (c *converter) warn(s *statement, format string, args ...any) {
	c.warnings = append(c.warnings, c.at(s, format, args...))
}

// change notes a part that works differently from keepalived, each text once.
func (c *converter) change(s *statement, format string, args ...any) {
	e := c.at(s, format, args...)
	if text := e.Err.Error(); !c.told[text] {
		c.told[text] = true
		c.changes = append(c.changes, e)
	}
}

// fail notes a part that cannot be converted.
func (c *converter) fail(s *statement, format string, args ...any) {
	e := c.at(s, format, args...)
	if hint := c.reader.undefined(strings.Join(s.words, " ")); unread(s.keyword()) == "" {
		e.Err = fmt.Errorf("%w%s", e.Err, hint)
	}
	c.errs = append(c.errs, e)
}

// top reads the statements outside of blocks.
func (c *converter) top(all []*statement) {
	c.readGroups(all)
	used := map[*statement]bool{}
	for _, s := range all {
		switch word := s.keyword(); {
		case word == "virtual_server_group":
		case word == "virtual_server":
			used[c.virtualServer(s)] = true
		case unread(word) != "":
			c.fail(s, "%s", unread(word))
		case slices.ContainsFunc(s.body, func(in *statement) bool {
			return strings.HasPrefix(in.keyword(), "virtual_server")
		}):
			c.fail(s, "has a virtual_server in its block: write that outside, after its last }")
		case word == "vrrp_instance":
			c.warn(s, "not converted: keepalived's VRRP, a route or the field device must bring "+
				"packets to the addresses here%s", addressesOf(s))
		case slices.Contains(elsewhere, word):
			c.warn(s, "is not about virtual servers: not converted")
		case s.block && word == "global_defs":
			c.globals(s)
		default:
			known := append([]string{"virtual_server", "virtual_server_group", "global_defs"},
				elsewhere...)
			c.fail(s, "unknown keyword%s", meant(word, known))
		}
	}

	for _, s := range all {
		if s.keyword() == "virtual_server_group" && !used[s] {
			c.warn(s, "no virtual_server uses it: not converted")
		}
	}
}

// addressesOf names the virtual addresses of a vrrp_instance.
func addressesOf(s *statement) string {
	var all []string
	for _, in := range s.body {
		if in.keyword() == "virtual_ipaddress" || in.keyword() == "virtual_ipaddress_excluded" {
			for _, a := range in.body {
				address, _, _ := strings.Cut(a.keyword(), "/")
				all = append(all, address)
			}
		}
	}

	if len(all) == 0 {
		return ""
	}
	return ": " + strings.Join(all, ", ")
}

// unread returns why a line is not read that begins with a word of keepalived's reader. It is empty
// for any other word.
func unread(word string) string {
	switch {
	case strings.HasPrefix(word, "@"):
		return "this line counts on one host only: say for which host to convert, with -i " +
			"(keepalived's own default is the name of the host)"
	case strings.HasPrefix(word, "$"):
		return "the parameter is not defined, or its value has several lines and does not end " +
			"the line"
	case strings.HasPrefix(word, "~"):
		return "sequences and lists of lines cannot be read"
	}

	return ""
}

// readGroups notes the groups of virtual servers.
func (c *converter) readGroups(all []*statement) {
	for _, s := range all {
		if s.keyword() != "virtual_server_group" {
			continue
		}
		if len(s.args()) != 1 || !s.block {
			c.fail(s, "want a name and a block")
			continue
		}

		if other := c.groups[s.args()[0]]; other != nil {
			c.fail(s, "%s has a group of this name, too", other.from(s))
		}
		c.groups[s.args()[0]] = s
	}
}

// globals reads the statements of global_defs that are about virtual servers.
func (c *converter) globals(of *statement) {
	c.warn(of, "only lvs_timeouts is converted")
	for _, s := range of.body {
		switch r := c.grammar[place{globals, s.keyword()}]; {
		case r.use != nil:
			r.use(c, s, nil)
		case r.warning != "":
			c.warn(s, "%s", r.warning)
		}
	}
}

// elsewhere are the keywords outside of blocks that are not about virtual servers. The last ones
// have no block.
var elsewhere = []string{"global_tracking", "linkbeat_interfaces", "static_ipaddress",
	"static_routes", "static_rules", "static_track_group", "track_group", "interface_up_down",
	"interface_up_down_delays", "garp_group", "vrrp_script", "vrrp_track_process", "track_process",
	"vrrp_track_file", "track_file", "vrrp_sync_group", "vrrp_instance", "bfd_instance", "SSL",
	"track_bfd", "linkbeat_use_polling", "net_namespace", "net_namespace_ipvs",
	"namespace_with_ipsets", "use_pid_dir", "instance", "child_wait_time"}
