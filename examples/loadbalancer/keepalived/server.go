package keepalived

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kernlb/kernlb/examples/loadbalancer/config"
	"github.com/kernlb/kernlb/servicemodel"
)

// virtual is a virtual server that is being read.
type virtual struct {
	config.Service
	timing
	flags  []string // of the scheduler
	listen []listen
}

// listen is an address and port at which a virtual server answers.
type listen struct {
	addr netip.Addr
	port uint16
}

// virtualServer converts one virtual server: into a service for each of its ports.
func (c *converter) virtualServer(s *statement) {
	if !s.block {
		c.fail(s, "want a block")
		return
	}
	name, where := c.whereOf(s)
	if len(where) == 0 {
		return
	}
	v := &virtual{listen: where, timing: timing{interval: time.Minute, timeout: 5 * time.Second}}
	v.Protocol, v.Scheduler, v.Masquerade = "tcp", "wlc", "never"
	v.Connections = "leave"
	serverKeywords().read(c, s, v)
	for _, flag := range []string{"+port", "+fallback"} {
		if slices.Contains(v.flags, flag) {
			v.Scheduler += flag
		}
	}
	if _, err := servicemodel.ParseScheduler(v.Scheduler); err != nil {
		c.fail(s, "scheduler %s: %w", v.Scheduler, err)
	}
	c.change(s, "connections to a server that fails go on, as with inhibit_on_failure "+
		"(connections: leave)")
	for _, l := range where {
		port := v.Service
		port.Name = fmt.Sprintf("%s-%d-%s", name, l.port, v.Protocol)
		port.Port = l.port
		c.change(s, "is the service %s", port.Name)
		same := func(o config.Service) bool { return o.Name == port.Name }
		if i := slices.IndexFunc(c.services, same); i >= 0 {
			c.services[i].Addresses = append(c.services[i].Addresses, l.addr)
			continue
		}
		port.Addresses = []netip.Addr{l.addr}
		c.services = append(c.services, port)
	}
}

// whereOf returns the name of a virtual server, and where it answers.
func (c *converter) whereOf(s *statement) (name string, where []listen) {
	args := s.args()
	switch {
	case len(args) == 2 && args[0] == "group":
		group := c.groups[args[1]]
		if group == nil {
			c.fail(s, "there is no virtual_server_group %s", args[1])
			return "", nil
		}
		for _, line := range group.body {
			where = append(where, c.listens(line, line.words)...)
		}
		if len(where) == 0 {
			c.fail(s, "the virtual_server_group %s has no address", args[1])
		}
		return args[1], where
	}
	where = c.listens(s, args)
	if len(where) > 0 {
		name = strings.ReplaceAll(where[0].addr.String(), ":", ".")
	}
	return name, where
}

// listens reads an address or a range of them, and a port.
func (c *converter) listens(s *statement, words []string) (out []listen) {
	if len(words) != 2 || words[0] == "fwmark" {
		c.fail(s, "want an address and a port: all ports of an address, and firewall marks, "+
			"cannot be had")
		return nil
	}
	port, ok := c.port(s, words[1])
	if !ok {
		return nil
	}
	addrs, err := addresses(words[0])
	if err != nil {
		c.fail(s, "%w", err)
	}
	for _, a := range addrs {
		out = append(out, listen{a, port})
	}
	return out
}

// maxRange bounds the addresses of a range.
const maxRange = 1024

// addresses reads an address, or a range: 10.0.0.1-9, 10.0.0.1-10.0.0.9 or 10.0.0.0/29.
func addresses(text string) (out []netip.Addr, err error) {
	var from netip.Addr
	var within func(netip.Addr) bool
	if p, prefixErr := netip.ParsePrefix(text); prefixErr == nil {
		from, within = p.Masked().Addr(), p.Contains
	} else {
		first, last, isRange := strings.Cut(text, "-")
		switch {
		case !isRange:
			last = first
		case !strings.ContainsAny(last, ".:"): // its last part only
			last = first[:strings.LastIndexAny(first, ".:")+1] + last
		}
		var to netip.Addr
		if from, err = netip.ParseAddr(first); err == nil {
			to, err = netip.ParseAddr(last)
		}
		if err != nil {
			return nil, err
		}
		within = func(a netip.Addr) bool { return a.Compare(to) <= 0 }
	}
	for a := from; a.IsValid() && within(a); a = a.Next() {
		if out = append(out, a); len(out) > maxRange {
			return nil, fmt.Errorf("%s has more than %d addresses", text, maxRange)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no address", text)
	}
	return out, nil
}

// endpoint reads an address and a port, which may be left out.
func (c *converter) endpoint(s *statement, port uint16) (netip.AddrPort, bool) {
	args := s.args()
	if len(args) == 1 {
		args = append(args, strconv.Itoa(int(port)))
	}
	if len(args) != 2 {
		c.fail(s, "want an address and a port")
		return netip.AddrPort{}, false
	}
	a, err := netip.ParseAddr(args[0])
	if err != nil {
		c.fail(s, "%w", err)
		return netip.AddrPort{}, false
	}
	p, ok := c.port(s, args[1])
	return netip.AddrPortFrom(a, p), ok
}

// forwardings are the names of lb_kind.
var forwardings = map[string]string{"NAT": "nat", "DR": "direct", "TUN": "tunnel"}

// forwarding reads the way in which packets are forwarded.
func (c *converter) forwarding(s *statement) (string, bool) {
	f := ""
	if len(s.args()) > 0 {
		f = forwardings[strings.ToUpper(s.args()[0])]
	}
	plain := len(s.args()) == 1 ||
		f == "tunnel" && slices.Equal(s.args()[1:], []string{"type", "ipip"})
	if f == "" || !plain {
		c.fail(s, "want NAT, DR or TUN (type ipip)")
		return "", false
	}
	return f, true
}

// serverKeywords are the keywords of a virtual server.
func serverKeywords() keywords[*virtual] {
	k := keywords[*virtual]{use: map[string]func(*converter, *statement, *virtual){
		"lb_kind": useForwarding, "lvs_method": useForwarding,
		"lb_algo": useScheduler, "lvs_sched": useScheduler,
		"persistence_timeout": usePersistence, "protocol": useProtocol, "quorum": useQuorum,
		"persistence_granularity": useGranularity,
		"persistence_engine": func(c *converter, s *statement, _ *virtual) {
			c.fail(s, "it cannot be had")
		},
	}, late: map[string]func(*converter, *statement, *virtual){
		"real_server": realServer, "sorry_server": useSorry,
		"sorry_server_lvs_method": func(c *converter, s *statement, v *virtual) {
			c.sameForwarding(s, v)
		},
	}, ignored: maps.Clone(ofServers)}
	for word, flag := range map[string]string{"flag-1": "+fallback", "flag-2": "+port",
		"sh-port": "+port", "sh-fallback": "+fallback", "mh-port": "+port",
		"mh-fallback": "+fallback"} {
		k.use[word] = func(_ *converter, _ *statement, v *virtual) {
			v.flags = append(v.flags, flag)
		}
	}
	for word, use := range timingKeywords {
		k.use[word] = func(c *converter, s *statement, v *virtual) { use(c, s, &v.timing) }
	}
	maps.Copy(k.ignored, notifies)
	return k
}

// sameForwarding refuses a forwarding other than the virtual server's.
func (c *converter) sameForwarding(s *statement, v *virtual) {
	if f, ok := c.forwarding(s); ok && f != cmp.Or(v.Forwarding, "nat") {
		c.fail(s, "must be that of the virtual server")
	}
}

func useForwarding(c *converter, s *statement, v *virtual) {
	if f, ok := c.forwarding(s); ok {
		v.Forwarding = f
	}
}

func useScheduler(c *converter, s *statement, v *virtual) {
	if name, ok := c.arg(s); ok {
		v.Scheduler = name
	}
}

func usePersistence(c *converter, s *statement, v *virtual) {
	v.Affinity = 6 * time.Minute // IPVS_SVC_PERSISTENT_TIMEOUT
	if len(s.args()) > 0 {
		seconds, _ := c.number(s, 31, "a number of seconds")
		v.Affinity = time.Duration(seconds) * time.Second
	}
}

// useGranularity reads a mask of IPv4, or a number of bits of IPv6.
func useGranularity(c *converter, s *statement, v *virtual) {
	text, ok := c.arg(s)
	if !ok {
		return
	}
	if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
		mask := a.As4()
		ones := bits.LeadingZeros32(^binary.BigEndian.Uint32(mask[:]))
		if ones > 0 && binary.BigEndian.Uint32(mask[:])<<ones == 0 {
			v.AffinityIPv4 = uint16(ones)
			return
		}
	}
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil || n == 0 || n > 128 {
		c.fail(s, "%q is no mask of IPv4 and no number of bits of IPv6", text)
	}
	v.AffinityIPv6 = uint16(n)
}

func useProtocol(c *converter, s *statement, v *virtual) {
	name, ok := c.arg(s)
	if !ok {
		return
	}
	v.Protocol = strings.ToLower(name)
	if !slices.Contains([]string{"tcp", "udp", "sctp"}, v.Protocol) {
		c.fail(s, "%q is not TCP, UDP or SCTP", name)
	}
}

func useQuorum(c *converter, s *statement, _ *virtual) {
	if n, ok := c.arg(s); ok && n != "1" {
		c.warn(s, "sorry servers are used as long as no backend is up")
	}
}

func useSorry(c *converter, s *statement, v *virtual) {
	if a, ok := c.endpoint(s, v.listen[0].port); ok {
		v.Sorry = append(v.Sorry, a)
	}
}
