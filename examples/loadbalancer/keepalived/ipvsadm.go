package keepalived

import (
	"cmp"
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/examples/loadbalancer/config"
)

// This file turns the lines that ipvsadm-save prints into statements of keepalived.

// option is an option of ipvsadm.
type option struct {
	long, keyword string
	value         bool // it has one
}

// options are the options of ipvsadm, with the keywords that they stand for.
var options = map[string]option{
	"-A": {"--add-service", "virtual_server", false},
	"-a": {"--add-server", "real_server", false},
	"-t": {"--tcp-service", "TCP", true}, "-u": {"--udp-service", "UDP", true},
	"-f": {"--fwmark-service", "fwmark", true}, "--sctp-service": {"", "SCTP", true},
	"-s": {"--scheduler", "lb_algo", true}, "-p": {"--persistent", "persistence_timeout", false},
	"-M": {"--netmask", "persistence_granularity", true}, "-o": {"--ops", "ops", false},
	"-b": {"--sched-flags", "", true}, "-r": {"--real-server", "", true},
	"--pe": {"pe", "persistence_engine", true}, "-6": {"--ipv6", "", false},
	"-m": {"--masquerading", "NAT", false}, "-g": {"--gatewaying", "DR", false},
	"-i": {"--ipip", "TUN", false}, "--tun-type": {"", "type", true},
	"-w": {"--weight", "weight", true}, "-x": {"--u-threshold", "uthreshold", true},
	"-y": {"--l-threshold", "lthreshold", true},
}

// isSaved reports whether lines are options of ipvsadm.
func isSaved(lines []*statement) bool {
	return len(lines) > 0 && slices.Contains([]string{"ipvsadm", "-A", "--add-service", "-a",
		"--add-server"}, lines[0].keyword())
}

// saved returns the virtual servers that lines of ipvsadm-save mean.
func (c *converter) saved(lines []*statement) (all []*statement) {
	c.warnings = append(c.warnings, &config.FieldError{File: c.file,
		Err: errors.New("the servers have no checks, and are always up: add some to the file")})
	known := map[string]*statement{} // virtual servers by what -t or the like says
	for _, l := range lines {
		made, service, ok := c.savedLine(l)
		switch {
		case !ok:
		case made.keyword() == "virtual_server":
			known[service], all = made, append(all, made)
		case known[service] == nil:
			c.fail(l, "no line before it adds the service %s", service)
		default:
			virtual := known[service]
			if kind := made.body[0]; !slices.ContainsFunc(virtual.body, func(s *statement) bool {
				return s.keyword() == kind.keyword()
			}) {
				virtual.body = append(virtual.body, kind)
			}
			virtual.body = append(virtual.body, made)
		}
	}

	return all
}

// savedLine returns the virtual server or the server that a line adds, and the service that it is
// about.
func (c *converter) savedLine(l *statement) (made *statement, service string, ok bool) {
	failed := len(c.errs)
	var where, server []string
	made = &statement{position: l.position, words: []string{""}, block: true}
	add := func(option string, words ...string) {
		made.body = append(made.body,
			&statement{position: l.position, words: words, option: option})
	}
	kind := &statement{position: l.position, words: []string{"lb_kind", "DR"}, option: "-g"}
	for _, g := range c.given(l) {
		words := []string{g.keyword, g.value}
		switch g.name {
		case "-A", "-a":
			made.option, made.words[0] = g.name, g.keyword
			continue
		case "-t", "-u", "--sctp-service":
			service, where = g.name+" "+g.value, c.numbers(l, g.value)
			words = []string{"protocol", g.keyword}
		case "-f":
			service, where = g.name+" "+g.value, words
			continue
		case "-r":
			server = c.numbers(l, g.value)
			continue
		case "-m", "-g", "-i":
			kind.option, kind.words[1] = g.name, g.keyword
			continue
		case "--tun-type":
			kind.words = append(kind.words, words...)
			continue
		case "-o":
			words = words[:1]
		case "-b":
			for flag := range strings.SplitSeq(g.value, ",") {
				add(g.name, flag)
			}
			continue
		}
		add(g.name, words...)
	}

	if len(c.errs) > failed {
		return nil, "", false
	}
	if made.keyword() == "real_server" { // its protocol is that of the service
		made.body = append([]*statement{kind}, slices.DeleteFunc(made.body,
			func(s *statement) bool { return s.keyword() == "protocol" })...)
		where = server
	}
	if made.words = append(made.words, where...); made.keyword() == "" || len(where) == 0 {
		c.fail(l, "want -A and a service, or -a, a service, and -r with a server")
	}
	return made, service, len(c.errs) == failed
}

// given is an option of a line.
type given struct {
	option
	name, value string
}

// given reads the options of a line. Those that change nothing are left out.
func (c *converter) given(l *statement) (out []given) {
	words := l.words
	if words[0] == "ipvsadm" {
		words = words[1:]
	}
	for len(words) > 0 {
		g := optionOf(words[0])
		if g.name == "" || g.option.value && len(words) < 2 {
			c.fail(l, "%s: is no option that ipvsadm-save prints, or its value is missing",
				words[0])
			return nil
		}

		words = words[1:]
		if g.option.value || g.name == "-p" && len(words) > 0 && !strings.HasPrefix(words[0], "-") {
			g.value, words = words[0], words[1:]
		}
		switch {
		case g.name == "-6", g.keyword == "uthreshold" && g.value == "0",
			g.keyword == "lthreshold" && g.value == "0":
			continue
		case g.name == "-p":
			g.value = cmp.Or(g.value, "300") // ipvsadm's default
		}
		out = append(out, g)
	}

	return out
}

// optionOf returns an option by its short or long name. Without a name, it is not known.
func optionOf(word string) given {
	for name, o := range options {
		if word == name || word == o.long && word != "" {
			return given{option: o, name: name}
		}
	}

	return given{}
}

// numbers splits an address and a port, which may be missing.
func (c *converter) numbers(l *statement, text string) []string {
	host, number, err := net.SplitHostPort(text)
	if err != nil {
		host, number = strings.Trim(text, "[]"), "0"
	}
	_, err = address(host)
	if strings.Trim(number, "0123456789") != "" || err != nil {
		c.fail(l, "%q: want an IP address and the number of a port, as ipvsadm-save -n prints them",
			text)
	}
	return []string{host, number}
}
