package keepalived

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane/checks"
	"github.com/kernlb/kernlb/examples/loadbalancer/config"
	"github.com/kernlb/kernlb/servicemodel"
)

// virtualServer converts one virtual server: into a service for each of its ports. It returns the
// group that the virtual server uses, if any.
func (c *converter) virtualServer(s *statement) (group *statement) {
	if !s.block {
		c.fail(s, "want a block")
		return nil
	}

	name, group, where := c.whereOf(s)
	if len(where) == 0 {
		return group
	}
	in := &scope{interval: time.Minute, timeout: 5 * time.Second, origins: map[string]*statement{},
		Service: config.Service{Scheduler: "wlc", Masquerade: "never", Connections: "leave"}}
	c.read(s, virtualServer, in)
	if !slices.ContainsFunc(s.body, func(of *statement) bool {
		return of.keyword() == "real_server"
	}) {
		if len(c.errs) == 0 { // a server may be in a statement with an error
			c.warn(s, "has no server: not converted, as keepalived ignores it")
		}
		return group
	}

	for _, of := range s.body {
		if field := fieldsOf[of.keyword()]; field != "" {
			in.origins[field] = of
		}
	}

	for _, flag := range []string{"+port", "+fallback"} {
		if slices.Contains(in.flags, flag) {
			in.Scheduler += flag
		}
	}

	if _, err := servicemodel.ParseScheduler(in.Scheduler); err != nil {
		c.fail(s, "scheduler %s: %w", in.Scheduler, err)
	}
	if in.AffinityIPv4+in.AffinityIPv6 > 0 {
		in.Affinity = cmp.Or(in.Affinity, persistence)
	}
	why := ""
	if in.Protocol == "" {
		in.Protocol, why = "udp", ": without a protocol, keepalived takes UDP"
	}
	made := map[uint16]int{} // the services of this virtual server by their ports
	for _, at := range where {
		if at.Port() == 0 && cmp.Or(in.Forwarding, "nat") != "nat" {
			c.fail(at.of, "all ports need NAT (lb_kind NAT, -m): write a service for each port")
			return group
		}
		i, again := made[at.Port()]
		if !again {
			i = len(c.out.Services)
			made[at.Port()] = i
			service := c.service(in, at.Port(), fmt.Sprintf("%s-%s-%s", name, portName(at.Port()),
				in.Protocol))
			c.change(s, "is the service %s%s", service.Name, why)
			c.out.Services = append(c.out.Services, service)
			path := fmt.Sprintf("services[%d]", i)
			c.origins[path] = s
			for field, of := range in.origins {
				c.origins[path+"."+field] = of
			}
		}

		service := &c.out.Services[i]
		c.origins[fmt.Sprintf("services[%d].addresses[%d]", i, len(service.Addresses))] = at.of
		service.Addresses = append(service.Addresses, at.Addr())
	}

	return group
}

// fieldsOf are fields of a service by the keywords that they are made from.
var fieldsOf = map[string]string{"lb_kind": "forwarding", "lvs_method": "forwarding",
	"lb_algo": "scheduler", "lvs_sched": "scheduler", "persistence_timeout": "affinity"}

// portName returns a port for names and messages.
func portName(port uint16) string {
	if port == 0 {
		return "all"
	}
	return strconv.Itoa(int(port))
}

// service returns the service of a virtual server at a port, or at all ports if that is 0. Then
// keepalived always makes clients stay with their servers. It has the name, or a longer one if
// another service has that.
func (c *converter) service(in *scope, port uint16, name string) config.Service {
	service := in.Service
	service.Name, service.Port = name, port
	if port == 0 {
		service.Port, service.EndPort = 1, math.MaxUint16
		service.Affinity = cmp.Or(service.Affinity, persistence)
	}
	for c.names[service.Name]++; c.names[service.Name] > 1; c.names[service.Name]++ {
		service.Name = fmt.Sprintf("%s-%d", name, c.names[name])
	}
	service.Backends, service.Sorry = slices.Clone(in.Backends), slices.Clone(in.Sorry)
	for i := range service.Backends {
		b := &service.Backends[i]
		was := b.Address.Port()
		b.Address = c.withPort(in, b.Address, &service, fmt.Sprintf("backends[%d]", i))
		b.Checks = slices.Clone(b.Checks)
		for j := range b.Checks {
			if was != 0 && was != b.Address.Port() {
				b.Checks[j].Port = cmp.Or(b.Checks[j].Port, was)
			}
			if port == 0 && was == 0 && b.Checks[j].Port == 0 {
				c.fail(in.origins[fmt.Sprintf("backends[%d].checks[%d]", i, j)],
					"needs connect_port, because the server answers at all ports")
			}
		}
	}

	for i, a := range service.Sorry {
		service.Sorry[i] = c.withPort(in, a, &service, fmt.Sprintf("sorry[%d]", i))
	}
	return service
}

// withPort returns the address of a server with the port at which it gets packets. Without one of
// its own, and where packets arrive as they were sent, that is the port of the virtual server.
// IPVS changes no port of a virtual server at all ports.
func (c *converter) withPort(in *scope, a netip.AddrPort, service *config.Service,
	field string) netip.AddrPort {
	nat := in.Forwarding == "" || in.Forwarding == "nat"
	if !nat && a.Port() != 0 && a.Port() != service.Port && service.EndPort == 0 {
		c.change(in.origins[field], "%s gets packets at port %d: the forwarding %s changes no port",
			a, service.Port, in.Forwarding)
	}

	if nat && a.Port() != 0 && service.EndPort == 0 {
		return a
	}
	return netip.AddrPortFrom(a.Addr(), service.Port)
}

// listener is where a virtual server answers, and the statement that says so.
type listener struct {
	netip.AddrPort
	of *statement
}

// whereOf returns the name of a virtual server, its group if it has one, and where it answers.
func (c *converter) whereOf(s *statement) (name string, group *statement, where []listener) {
	args := s.args()
	if len(args) != 2 || args[0] != "group" {
		if where = c.listens(s, args); len(where) > 0 {
			name = strings.ReplaceAll(where[0].Addr().String(), ":", ".")
		}
		return name, nil, where
	}

	if group = c.groups[args[1]]; group == nil {
		c.fail(s, "there is no virtual_server_group %s", args[1])
		return "", nil, nil
	}

	for _, line := range group.body {
		where = append(where, c.listens(line, line.words)...)
	}
	if len(where) == 0 {
		c.fail(s, "the virtual_server_group %s has no address", args[1])
	}
	return args[1], group, where
}

// listens reads an address or a range of them, and a port. Without a port, or with 0, it is all
// ports.
func (c *converter) listens(s *statement, words []string) (out []listener) {
	switch {
	case len(words) > 0 && words[0] == "fwmark":
		c.fail(s, "firewall marks are not supported: write a service for each address and port "+
			"whose packets get the mark")
		return nil
	case len(words) != 1 && len(words) != 2:
		c.fail(s, "want an address and a port")
		return nil
	}

	p, err := uint16(0), error(nil)
	if len(words) == 2 && words[1] != "0" {
		p, err = port(words[1])
	}
	addrs, addrErr := addresses(words[0])
	if err = cmp.Or(err, addrErr); err != nil {
		c.fail(s, "%w", err)
		return nil
	}

	for _, a := range addrs {
		out = append(out, listener{netip.AddrPortFrom(a, p), s})
	}
	return out
}

// endpoint reads an address and a port. The port may be 0, or left out: a server has the port of
// each virtual server.
func (c *converter) endpoint(s *statement) (netip.AddrPort, bool) {
	args := s.args()
	if len(args) != 1 && len(args) != 2 {
		c.fail(s, "want an address and a port")
		return netip.AddrPort{}, false
	}

	a, err := address(args[0])
	p := uint16(0)
	if err == nil && len(args) == 2 && args[1] != "0" {
		p, err = port(args[1])
	}
	if err == nil && a.IsLoopback() {
		err = fmt.Errorf("%s: must not be a loopback address: give an address of this host", a)
	}
	if err != nil {
		c.fail(s, "%w", err)
	}
	return netip.AddrPortFrom(a, p), err == nil
}

// forwardings are the names of lb_kind.
var forwardings = map[string]string{"NAT": "nat", "DR": "direct", "TUN": "tunnel"}

// forwarding reads the way in which packets are forwarded.
func (c *converter) forwarding(s *statement) (string, bool) {
	f := ""
	if len(s.args()) > 0 {
		f = forwardings[s.args()[0]]
	}
	plain := len(s.args()) == 1 ||
		f == "tunnel" && slices.Equal(s.args()[1:], []string{"type", "ipip"})
	if f == "" || !plain {
		if f == "tunnel" && len(s.args()) > 2 && s.args()[2] != "ipip" {
			c.fail(s, "TUN %s: not supported: only ipip", strings.Join(s.args()[1:], " "))
		} else {
			c.fail(s, "want NAT, DR or TUN (type ipip)")
		}
		return "", false
	}

	return f, true
}

func useForwarding(c *converter, s *statement, in *scope) {
	if f, ok := c.forwarding(s); ok {
		in.Forwarding = f
	}
}

// sameForwarding refuses a forwarding other than the virtual server's.
func sameForwarding(c *converter, s *statement, in *scope) {
	if f, ok := c.forwarding(s); ok && f != cmp.Or(in.Forwarding, "nat") {
		c.fail(s, "must be that of the service")
	}
}

func refuse(c *converter, s *statement, _ *scope) {
	c.fail(s, "not supported: take it out, and clients are told apart by their addresses")
}

// persistence is keepalived's default for persistence_timeout (IPVS_SVC_PERSISTENT_TIMEOUT).
const persistence = 6 * time.Minute

func usePersistence(c *converter, s *statement, in *scope) {
	in.Affinity = persistence
	if len(s.args()) > 0 {
		set(wholeSeconds, func(in *scope) *time.Duration { return &in.Affinity })(c, s, in)
	}
}

// useGranularity reads a mask of IPv4, or a number of bits of IPv6.
func useGranularity(c *converter, s *statement, in *scope) {
	text, ok := c.arg(s)
	if !ok {
		return
	}
	if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
		mask := a.As4()
		ones := bits.LeadingZeros32(^binary.BigEndian.Uint32(mask[:]))
		if ones > 0 && binary.BigEndian.Uint32(mask[:])<<ones == 0 {
			in.AffinityIPv4 = uint16(ones)
			return
		}
	}

	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil || n == 0 || n > 128 {
		c.fail(s, "%q is no mask of IPv4 and no number of bits of IPv6", text)
	}
	in.AffinityIPv6 = uint16(n)
}

func useQuorum(c *converter, s *statement, _ *scope) {
	if n, ok := c.arg(s); ok && n != "1" {
		c.warn(s, "%s: ignored: one backend is enough, and sorry servers are used only if "+
			"none is up",
			n)
	}
}

func useSorry(c *converter, s *statement, in *scope) {
	if a, ok := c.endpoint(s); ok {
		if was := in.origins["sorry[0]"]; was != nil {
			c.warn(was, "%s replaces it", s.from(was))
		}
		in.Sorry, in.origins["sorry[0]"] = []netip.AddrPort{a}, s
	}
}

// useReal converts one real server.
func useReal(c *converter, s *statement, in *scope) {
	addr, ok := c.endpoint(s)
	if !ok {
		return
	}
	inner := *in
	inner.real = &config.Backend{Address: addr, Weight: in.weight}
	in.origins[fmt.Sprintf("backends[%d]", len(in.Backends))] = s
	c.read(s, realServer, &inner)
	c.standIn(s, &inner)
	in.Backends = append(in.Backends, *inner.real)
}

// useOther notes a check that the load balancer does not have.
func useOther(_ *converter, s *statement, in *scope) { in.others = append(in.others, s) }

// useHost reads one of the addresses to which an SMTP_CHECK connects.
func useHost(c *converter, s *statement, in *scope) {
	if !s.block {
		c.fail(s, "want a block")
	}
	inner := *in
	c.read(s, host, &inner)
	in.timeout, in.urls = inner.timeout, append(in.urls, inner.spec)
}

// standIn gives a server other checks if the load balancer does not have the server's only checks.
func (c *converter) standIn(s *statement, in *scope) {
	enough := len(in.real.Checks) > 0
	for _, other := range in.others {
		if enough {
			c.warn(other, "not supported: only the other checks are made")
			continue
		}

		k := *in
		k.spec = config.Check{Type: string(checks.TCP), Rise: 1}
		c.read(other, otherCheck, &k)
		if in.Protocol == "tcp" && cmp.Or(in.real.Address.Port(), k.spec.Port) != 0 {
			c.warn(other, "not supported: a check that only connects stands in, of the type tcp")
			c.addChecks(other, &k, in)
			continue
		}

		server := strings.Join(s.args(), " ")
		c.warn(other, "not supported: the server %s has no check left and is always up: add "+
			"checks to it in the new file", server)
		if !slices.Contains(c.unchecked, server) {
			c.unchecked = append(c.unchecked, server)
		}
	}
}

func useVirtualHost(c *converter, s *statement, in *scope) {
	if in.spec.Type != "" && !in.web() {
		c.warn(s, "is of HTTP_GET and SSL_GET: not converted")
	}
	set(text, func(in *scope) *string { return &in.host })(c, s, in)
}

func useDelay(c *converter, s *statement, in *scope) {
	in.delay = new(time.Duration)
	set(seconds, func(in *scope) *time.Duration { return in.delay })(c, s, in)
}

// checkTypes are the checks that the load balancer has.
var checkTypes = map[string]checks.Type{"TCP_CHECK": checks.TCP, "HTTP_GET": checks.HTTP,
	"SSL_GET": checks.HTTPS, "UDP_CHECK": checks.UDP}

// useCheck converts one check of a real server.
func useCheck(c *converter, s *statement, in *scope) {
	k := *in
	k.spec = config.Check{Type: string(checkTypes[s.keyword()]), Rise: 1}
	c.read(s, check, &k)
	c.addChecks(s, &k, in)
}

// addChecks gives the real server the checks of a scope.
func (c *converter) addChecks(s *statement, k, in *scope) {
	c.change(s, "a server gets connections when its first check has passed, as with alpha")
	c.change(s, "connections to a server that fails go on, as with inhibit_on_failure "+
		"(connections: leave)")
	delay, retry, parts := 3*time.Second, 1, "urls"
	if !k.web() {
		delay, parts = time.Second, "hosts"
	}
	switch {
	case len(k.urls) > 0:
	case k.web():
		c.fail(s, "has no url")
	default:
		k.urls = []config.Check{k.spec}
	}

	if k.delay != nil {
		delay = *k.delay
	}
	if k.retry != nil {
		retry = *k.retry
	}
	if len(k.urls) > 1 {
		c.change(s, "its %d %s are checks of their own, which must all pass", len(k.urls), parts)
	}
	for _, spec := range k.urls {
		spec.Interval, spec.Timeout, spec.Retry = k.interval, k.timeout, delay
		spec.Fall = retry + 1
		if k.web() {
			spec.Host = cmp.Or(spec.Host, k.host)
		}
		c.change(s, "retry %d: a server is down after %d failures in a row (fall: %d), and up "+
			"after one success (rise: 1)", retry, spec.Fall, spec.Fall)
		c.change(s, "connect_timeout bounds the whole check (timeout: %s)", spec.Timeout)
		in.origins[fmt.Sprintf("backends[%d].checks[%d]", len(in.Backends),
			len(in.real.Checks))] = s
		in.real.Checks = append(in.real.Checks, spec)
	}
}

// useURL converts a request to a web server.
func useURL(c *converter, s *statement, in *scope) {
	if !in.web() {
		c.fail(s, "is of HTTP_GET and SSL_GET")
		return
	}

	inner := *in
	c.read(s, url, &inner)
	for _, e := range inner.spec.Validate() {
		c.fail(s, "%s: %w", e.Path, e.Err)
	}
	in.urls = append(in.urls, inner.spec)
}

// web reports whether the check is an HTTP request.
func (in *scope) web() bool {
	return in.spec.Type == string(checks.HTTP) || in.spec.Type == string(checks.HTTPS)
}

// octets returns the octets of a statement in hexadecimal, up to the first octet that may have any
// value.
func (c *converter) octets(s *statement) config.Bytes {
	text := strings.ToLower(strings.Join(s.args(), ""))
	if i := strings.IndexByte(text, 'x'); i >= 0 {
		c.warn(s, "the answer is compared before the first X")
		text = text[:i/2*2]
	}

	raw, err := hex.DecodeString(text)
	if err != nil {
		c.fail(s, "%q: must be pairs of hexadecimal digits", text)
	}
	return config.Bytes(raw)
}

func usePayload(c *converter, s *statement, in *scope) { in.spec.Payload = c.octets(s) }

func useReply(c *converter, s *statement, in *scope) {
	in.spec.Reply, in.spec.Answer = true, c.octets(s)
}

func useStatus(_ *converter, s *statement, in *scope) {
	codes := append(strings.Fields(in.spec.Status), s.args()...)
	in.spec.Status = strings.Join(slices.Compact(codes), " ")
}

// useTimeouts reads pairs of a name and a number of seconds.
func useTimeouts(c *converter, s *statement, _ *scope) {
	c.origins["timeouts"] = s
	into := map[string]*time.Duration{"tcp": &c.out.Timeouts.TCP, "tcpfin": &c.out.Timeouts.TCPFin,
		"udp": &c.out.Timeouts.UDP}
	for pair := range slices.Chunk(s.args(), 2) {
		if into[pair[0]] == nil || len(pair) < 2 {
			c.fail(s, "want tcp, tcpfin or udp, and seconds")
		} else if d, err := wholeSeconds(pair[1]); err != nil {
			c.fail(s, "%w", err)
		} else {
			*into[pair[0]] = d
		}
	}
}
