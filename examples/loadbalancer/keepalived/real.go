package keepalived

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kernlb/kernlb/examples/loadbalancer/check"
	"github.com/kernlb/kernlb/examples/loadbalancer/config"
)

// timing has the times that servers inherit from virtual servers, and checks from servers.
type timing struct {
	interval, timeout time.Duration
	retry             *int
	delay             *time.Duration // before a retry
	host              string
}

// timingKeywords are the keywords of a timing.
var timingKeywords = map[string]func(*converter, *statement, *timing){
	"delay_loop": func(c *converter, s *statement, t *timing) { c.timer(s, &t.interval) },
	"connect_timeout": func(c *converter, s *statement, t *timing) {
		c.timer(s, &t.timeout)
	},
	"delay_before_retry": func(c *converter, s *statement, t *timing) {
		t.delay = new(time.Duration)
		c.timer(s, t.delay)
	},
	"retry": useRetry, "nb_get_retry": useRetry,
	"virtualhost": func(c *converter, s *statement, t *timing) {
		if host, ok := c.arg(s); ok {
			t.host = host
		}
	},
}

// timer reads a number of seconds, with decimals.
func (c *converter) timer(s *statement, to *time.Duration) {
	text, ok := c.arg(s)
	if !ok {
		return
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds >= 0.001 && seconds <= math.MaxInt32) {
		c.fail(s, "%q is not a number of seconds, from 0.001 on", text)
		return
	}
	*to = time.Duration(math.Round(seconds*1e6)) * time.Microsecond
}

func useRetry(c *converter, s *statement, t *timing) {
	if n, ok := c.number(s, 16, "a number"); ok {
		t.retry = new(int(n))
	}
}

// server is a real server that is being read.
type server struct {
	config.Backend
	timing
	virtual *virtual
}

// realServer converts one server.
func realServer(c *converter, s *statement, v *virtual) {
	addr, ok := c.endpoint(s, v.listen[0].port)
	if !ok {
		return
	}
	r := &server{Backend: config.Backend{Address: addr}, timing: v.timing, virtual: v}
	realKeywords().read(c, s, r)
	v.Backends = append(v.Backends, r.Backend)
}

// realKeywords are the keywords of a real server.
func realKeywords() keywords[*server] {
	same := func(c *converter, s *statement, r *server) { c.sameForwarding(s, r.virtual) }
	k := keywords[*server]{use: map[string]func(*converter, *statement, *server){
		"weight": useWeight, "lb_kind": same, "lvs_method": same,
	}, late: map[string]func(*converter, *statement, *server){}, ignored: maps.Clone(notifies)}
	for word, use := range timingKeywords {
		k.use[word] = func(c *converter, s *statement, r *server) { use(c, s, &r.timing) }
	}
	for word := range checkTypes {
		k.late[word] = useCheck
	}
	for _, word := range noChecks {
		k.ignored[word] = "nothing is asked instead: without other checks, the server is always up"
	}
	return k
}

func useWeight(c *converter, s *statement, r *server) {
	if n, ok := c.number(s, 16, "a weight from 0 to 65535"); ok {
		r.Weight = new(uint16(n))
	}
}

// checkTypes are the checks that the load balancer has, and noChecks the ones that it lacks.
var (
	checkTypes = map[string]string{"TCP_CHECK": check.TCP, "HTTP_GET": check.HTTP,
		"SSL_GET": check.HTTPS}
	noChecks = []string{"MISC_CHECK", "SMTP_CHECK", "DNS_CHECK", "BFD_CHECK", "PING_CHECK",
		"UDP_CHECK", "FILE_CHECK"}
)

// checker is a check that is being read.
type checker struct {
	timing
	spec check.Spec
	urls []check.Spec
}

// useCheck converts one check.
func useCheck(c *converter, s *statement, r *server) {
	k := &checker{timing: r.timing, spec: check.Spec{Type: checkTypes[s.keyword()], Rise: 1}}
	checkKeywords().read(c, s, k)
	c.change(s, "a server gets connections when its first check has passed, as with alpha")
	fill := func(spec *check.Spec) {
		delay, retry := time.Second, 1
		if spec.Type != check.TCP {
			delay = 3 * time.Second
			spec.Host = cmp.Or(spec.Host, k.host)
		}
		if k.delay != nil {
			delay = *k.delay
		}
		if k.retry != nil {
			retry = *k.retry
		}
		spec.Interval, spec.Timeout, spec.Retry = k.interval, k.timeout, delay
		spec.Fall = retry + 1
		c.change(s, "retry %d: a server is down after %d failures in a row (fall: %d), and up "+
			"after one success (rise: 1)", retry, spec.Fall, spec.Fall)
		c.change(s, "connect_timeout bounds the whole check (timeout: %s)", spec.Timeout)
	}
	if k.spec.Type == check.TCP {
		k.urls = []check.Spec{k.spec}
	} else if len(k.urls) == 0 {
		c.fail(s, "has no url")
	}
	if len(k.urls) > 1 {
		c.change(s, "its %d urls are checks of their own, which must all pass", len(k.urls))
	}
	for _, spec := range k.urls {
		fill(&spec)
		spec.Address, spec.Port, spec.Source = k.spec.Address, k.spec.Port, k.spec.Source
		r.Checks = append(r.Checks, spec)
	}
}

// checkKeywords are the keywords of a check.
func checkKeywords() keywords[*checker] {
	k := keywords[*checker]{use: map[string]func(*converter, *statement, *checker){
		"connect_ip": func(c *converter, s *statement, k *checker) {
			c.address(s, &k.spec.Address)
		},
		"bindto": func(c *converter, s *statement, k *checker) { c.address(s, &k.spec.Source) },
		"connect_port": func(c *converter, s *statement, k *checker) {
			if text, ok := c.arg(s); ok {
				k.spec.Port, _ = c.port(s, text)
			}
		},
		"url": useURL,
	}, ignored: map[string]string{
		"bind_port": "checks come from any port", "bind_if": "the kernel chooses the interface",
		"fwmark": "checks have no mark", "log_all_failures": "", "alpha": "", "warmup": "",
		"fast_recovery": "", "enable_sni": "", "http_protocol": "HTTP 1.1 is spoken",
	}}
	for word, use := range timingKeywords {
		k.use[word] = func(c *converter, s *statement, k *checker) { use(c, s, &k.timing) }
	}
	return k
}

// address reads an address.
func (c *converter) address(s *statement, to *netip.Addr) {
	text, ok := c.arg(s)
	if !ok {
		return
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		c.fail(s, "%w", err)
		return
	}
	*to = a
}

// useURL converts a request to a web server.
func useURL(c *converter, s *statement, k *checker) {
	if k.spec.Type == check.TCP {
		c.fail(s, "is of HTTP_GET and SSL_GET")
		return
	}
	spec := k.spec
	urlKeywords.read(c, s, &spec)
	for _, e := range spec.Validate() {
		c.fail(s, "%w", e)
	}
	k.urls = append(k.urls, spec)
}

const noRegex = "the body is not compared with it"

// urlKeywords are the keywords of a url.
var urlKeywords = keywords[*check.Spec]{
	use: map[string]func(*converter, *statement, *check.Spec){
		"path":        func(c *converter, s *statement, u *check.Spec) { u.Path, _ = c.arg(s) },
		"digest":      func(c *converter, s *statement, u *check.Spec) { u.Digest, _ = c.arg(s) },
		"virtualhost": func(c *converter, s *statement, u *check.Spec) { u.Host, _ = c.arg(s) },
		"status_code": func(_ *converter, s *statement, u *check.Spec) {
			codes := append(strings.Fields(u.Status), s.args()...)
			u.Status = strings.Join(slices.Compact(codes), " ")
		},
	},
	ignored: map[string]string{"regex": noRegex, "regex_no_match": noRegex,
		"regex_options": noRegex, "regex_stack": noRegex, "regex_min_offset": noRegex,
		"regex_max_offset": noRegex},
}
