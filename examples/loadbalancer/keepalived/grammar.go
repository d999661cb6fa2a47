package keepalived

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/examples/command/suggest"
	"github.com/kernlb/kernlb/examples/loadbalancer/config"
)

// block is a kind of block, or several of them.
type block int

const (
	virtualServer block = 1 << iota
	realServer
	check
	url
	otherCheck // a check that the load balancer does not have
	host       // of such a check
	globals
	servers = virtualServer | realServer
	timed   = servers | check | otherCheck
	connect = check | otherCheck | host
)

// scope is what the statements of a block change. Blocks inherit the scope around them.
type scope struct {
	config.Service                 // of the virtual server
	flags          []string        // of its scheduler
	real           *config.Backend // of the real server

	interval, timeout time.Duration
	retry             *int
	delay             *time.Duration // before a retry
	host              string

	spec config.Check // of the check or url
	urls []config.Check

	// origins are the statements from which fields of the service are made.
	origins map[string]*statement
	weight  *uint16 // of real servers without one
	// others are checks of the real server that the load balancer does not have.
	others []*statement
}

// use does what a statement says.
type use func(c *converter, s *statement, in *scope)

// rule says what keywords do in some kinds of blocks.
type rule struct {
	in    block
	words string
	use   use
	// late statements come after all others of the block, because they inherit from these.
	late bool
	// blocks says that the statement may have a block, and many that several statements count. If
	// others are repeated, keepalived takes the last one.
	blocks, many bool
	// warning says what is left out, if there is no use. It is empty if the load balancer always
	// works as the keyword asks. The documentation of the package lists these.
	warning string
}

// noted is the warning about keywords that only notify people or programs.
const noted = "not supported, and dropped"

// set reads the one argument of a statement into a field.
func set[T any](parse func(string) (T, error), field func(*scope) *T) use {
	return func(c *converter, s *statement, in *scope) {
		text, ok := c.arg(s)
		if !ok {
			return
		}
		if value, err := parse(text); err != nil {
			c.fail(s, "%w", err)
		} else {
			*field(in) = value
		}
	}
}

// flag adds an option to the scheduler.
func flag(name string) use {
	return func(_ *converter, _ *statement, in *scope) { in.flags = append(in.flags, name) }
}

// rules are the grammar of virtual servers and their servers.
func rules() []rule {
	return []rule{
		{in: globals, words: "lvs_timeouts", use: useTimeouts},
		{in: globals, words: "lvs_sync_daemon", warning: "connections are not copied to another " +
			"host: not converted"},
		{in: globals, words: "lvs_flush lvs_flush_on_stop lvs_flush_onstop", warning: "when the " +
			"program starts or stops, the kernel keeps the virtual servers: not converted"},

		{in: virtualServer, words: "lb_kind lvs_method", use: useForwarding},
		{in: virtualServer, words: "lb_algo lvs_sched", use: set(scheduler,
			func(in *scope) *string { return &in.Scheduler })},
		{in: virtualServer, words: "flag-1 sh-fallback mh-fallback", use: flag("+fallback"),
			many: true},
		{in: virtualServer, words: "flag-2 sh-port mh-port", use: flag("+port"), many: true},
		{in: virtualServer, words: "protocol", use: set(protocol,
			func(in *scope) *string { return &in.Protocol })},
		{in: virtualServer, words: "persistence_timeout", use: usePersistence},
		{in: virtualServer, words: "persistence_granularity", use: useGranularity},
		{in: virtualServer, words: "persistence_engine", use: refuse},
		{in: virtualServer, words: "quorum", use: useQuorum},
		{in: virtualServer, words: "sorry_server", use: useSorry, late: true, many: true},
		{in: virtualServer, words: "sorry_server_lvs_method", use: sameForwarding, late: true},
		{in: virtualServer, words: "real_server", use: useReal, late: true,
			blocks: true, many: true},
		{in: virtualServer, words: "ha_suspend", warning: "ignored: checks are never suspended"},
		{in: virtualServer, words: "omega quorum_up quorum_down nat_mask", warning: noted},
		{in: virtualServer, words: "ip_family sorry_server_inhibit"},
		{in: virtualServer, words: "ops", warning: "ignored: packets of a flow go to one backend"},
		{in: virtualServer, words: "hysteresis",
			warning: "ignored: sorry servers are used only if no backend is up"},

		{in: realServer, words: "weight", use: set(weight,
			func(in *scope) **uint16 { return &in.real.Weight })},
		{in: realServer, words: "lb_kind lvs_method", use: sameForwarding},
		{in: realServer, words: "TCP_CHECK HTTP_GET SSL_GET UDP_CHECK", use: useCheck, late: true,
			blocks: true, many: true},
		{in: realServer, words: "MISC_CHECK SMTP_CHECK DNS_CHECK BFD_CHECK PING_CHECK " +
			"FILE_CHECK", use: useOther, blocks: true, many: true},

		{in: servers, words: "notify_up notify_down smtp_alert snmp_name", warning: noted},
		{in: servers, words: "uthreshold lthreshold",
			warning: "ignored: no limit of connections is kept"},
		{in: servers, words: "inhibit_on_failure"},

		{in: virtualServer, words: "weight", use: set(weight,
			func(in *scope) **uint16 { return &in.weight })},
		{in: virtualServer, words: "hashed flag-3", warning: noted},
	}
}

// checkRules are the grammar of checks, and of what servers say about them.
func checkRules() []rule {
	return []rule{
		{in: timed, words: "delay_loop", use: set(seconds,
			func(in *scope) *time.Duration { return &in.interval })},
		{in: timed | host, words: "connect_timeout", use: set(seconds,
			func(in *scope) *time.Duration { return &in.timeout })},
		{in: timed, words: "delay_before_retry", use: useDelay},
		{in: timed, words: "retry nb_get_retry", use: set(count,
			func(in *scope) **int { return &in.retry })},
		{in: timed, words: "virtualhost", use: useVirtualHost},
		{in: timed, words: "alpha"},
		{in: timed, words: "warmup", warning: "ignored: a server's first check is made at once"},

		{in: connect, words: "connect_ip", use: set(address,
			func(in *scope) *netip.Addr { return &in.spec.Address.Addr })},
		{in: connect, words: "bindto", use: set(address,
			func(in *scope) *netip.Addr { return &in.spec.Source.Addr })},
		{in: connect, words: "connect_port", use: set(port,
			func(in *scope) *uint16 { return &in.spec.Port })},
		{in: check, words: "url", use: useURL, late: true, blocks: true, many: true},
		{in: check, words: "payload", use: usePayload},
		{in: check, words: "require_reply", use: useReply},
		{in: check, words: "min_reply_length max_reply_length",
			warning: "ignored: no length is compared"},
		{in: connect, words: "bind_port bind_if", warning: "ignored: the kernel chooses it"},
		{in: connect, words: "fwmark", warning: "ignored: checks have no mark"},
		{in: check, words: "http_protocol", warning: "ignored: HTTP 1.1 is spoken"},
		{in: check, words: "enable_sni"},
		{in: check, words: "sni_name", use: set(text,
			func(in *scope) *string { return &in.spec.ServerName })},
		{in: check | otherCheck | url, words: "log_all_failures fast_recovery tls_compliant",
			warning: noted},

		{in: otherCheck, words: "misc_timeout", use: set(seconds,
			func(in *scope) *time.Duration { return &in.timeout })},
		{in: otherCheck, words: "host", use: useHost, late: true, blocks: true,
			many: true},
		{in: otherCheck, words: "misc_path misc_dynamic user helo_name type name track_file " +
			"weight"},

		{in: url, words: "path", use: set(text,
			func(in *scope) *string { return &in.spec.Path })},
		{in: url, words: "digest", use: set(text,
			func(in *scope) *string { return &in.spec.Digest })},
		{in: url, words: "virtualhost", use: set(text,
			func(in *scope) *string { return &in.spec.Host })},
		{in: url, words: "status_code", use: useStatus, many: true},
		{in: url, words: "regex regex_no_match regex_options regex_stack regex_min_offset " +
			"regex_max_offset", warning: "ignored: the body is not compared with it"},
	}
}

// place is a keyword in a kind of block.
type place struct {
	in   block
	word string
}

// words returns the keywords of a kind of block.
func (c *converter) words(kind block) (known []string) {
	for p := range c.grammar {
		if p.in == kind {
			known = append(known, p.word)
		}
	}

	slices.Sort(known)
	return known
}

// meant returns "; did you mean …?" if a word looks like one of the known ones.
func meant(word string, known []string) string {
	if k, ok := suggest.Nearest(word, known); ok {
		return "; did you mean " + k + "?"
	}
	return ""
}

// newGrammar returns the rules by their places.
func newGrammar() map[place]rule {
	grammar := map[place]rule{}
	for _, r := range append(rules(), checkRules()...) {
		for in := virtualServer; in <= globals; in <<= 1 {
			for _, word := range strings.Fields(r.words) {
				if r.in&in != 0 {
					grammar[place{in, word}] = r
				}
			}
		}
	}

	return grammar
}

// read reads the statements of a block.
func (c *converter) read(of *statement, kind block, in *scope) {
	last := map[string]*statement{} // by the words of a rule
	for _, s := range of.body {
		last[c.grammar[place{kind, s.keyword()}].words] = s
	}
	for _, late := range []bool{false, true} {
		for _, s := range of.body {
			r, known := c.grammar[place{kind, s.keyword()}]
			switch {
			case late != r.late:
			case !known && unread(s.keyword()) != "":
				c.fail(s, "%s", unread(s.keyword()))
			case !known:
				c.fail(s, "unknown keyword in the block of %s%s", of.keyword(),
					meant(s.keyword(), c.words(kind)))
			case s.block && !r.blocks:
				c.fail(s, "takes no block")
			case !r.many && r.use != nil && last[r.words] != s:
				c.warn(s, "%s replaces it", last[r.words].from(s))
			case r.use != nil:
				r.use(c, s, in)
			case r.warning != "":
				c.warn(s, "%s", r.warning)
			}
		}
	}
}
