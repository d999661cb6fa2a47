package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"

	"github.com/kernlb/kernlb/servicemodel"
)

// config is the input of the plugin from a runtime for ADD and CHECK, with the fields of portmap
// (https://www.cni.dev/plugins/current/meta/portmap/).
type config struct {
	types.PluginConf
	// PrevResult is the unparsed result of the previous plugin.
	PrevResult json.RawMessage `json:"prevResult"`
	// RuntimeConfig has the ports to publish.
	RuntimeConfig struct {
		PortMappings []mapping `json:"portMappings"`
	} `json:"runtimeConfig"`
	Args json.RawMessage `json:"args"` // of conventions that this plugin does not use

	Backend              string   `json:"backend"`
	SNAT                 *bool    `json:"snat"`
	MasqAll              bool     `json:"masqAll"`
	MarkMasqBit          *int     `json:"markMasqBit"`
	ExternalSetMarkChain *string  `json:"externalSetMarkChain"`
	ConditionsV4         []string `json:"conditionsV4"`
	ConditionsV6         []string `json:"conditionsV6"`

	// mappings are the checked RuntimeConfig.PortMappings.
	mappings []mapping
	// families are the families in which the container has an address.
	families []family
	// published are the places of the mappings.
	published []publication
}

// mapping is one port to publish.
type mapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"` // tcp if empty
	HostIP        string `json:"hostIP"`   // all addresses of the host if empty

	protocol servicemodel.Protocol
	hostIP   netip.Addr // invalid for all addresses
}

// publication is a place on the host where a mapping is published, for one family.
type publication struct {
	mapping int // the index
	family  family
	at      netip.Addr // the address of the host; invalid for all addresses of the family
}

// family is the configuration of one family of addresses.
type family struct {
	name      string     // "IPv4" or "IPv6"
	container netip.Addr // the container's address
	only      netip.Addr // the address that conditions allow; invalid for all
}

// parse parses and checks the input from a runtime. It changes nothing.
func parse(stdin []byte, iface string) (*config, error) {
	conf := &config{}
	if err := decode(stdin, conf); err != nil {
		return nil, err
	}
	only, err := conf.checkFields(stdin)
	if err == nil {
		err = conf.checkMappings()
	}
	if err == nil {
		conf.families, err = conf.containerAddrs(iface, only)
	}
	if err == nil {
		err = conf.publications()
	}
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	return conf, nil
}

// decode decodes the input from a runtime. An error about a value names its field.
func decode(stdin []byte, into any) error {
	err := json.Unmarshal(stdin, into)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		err = fmt.Errorf("%s: is of the type %s, not %s", wrong.Field, wrong.Value, wrong.Type)
	}
	if err != nil {
		return types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	return nil
}

// checkFields checks the fields that an administrator writes. It returns the addresses that the
// conditions allow, by the name of their family.
func (c *config) checkFields(stdin []byte) (only map[string]netip.Addr, err error) {
	errs := []error{unknownFields(stdin)}
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}

	refuse(c.Backend != "" && c.Backend != "nftables",
		"backend: %s: this plugin has nftables only", c.Backend)
	if c.SNAT != nil && !*c.SNAT {
		log.Print("snat: false: a container that reaches itself through its host, and the host " +
			"at loopback addresses, are masqueraded all the same: they could not connect else")
	}

	refuse(c.ExternalSetMarkChain != nil,
		"externalSetMarkChain: there is no chain of iptables to jump to; see markMasqBit")
	refuse(c.MarkMasqBit != nil && (*c.MarkMasqBit < 0 || *c.MarkMasqBit > 31),
		"markMasqBit: must be from 0 to 31")
	only = map[string]netip.Addr{}
	for _, f := range []struct {
		family, field string
		conditions    []string
	}{{"IPv4", "conditionsV4", c.ConditionsV4}, {"IPv6", "conditionsV6", c.ConditionsV6}} {
		addr, err := parseConditions(f.family, f.conditions)
		refuse(err != nil, "%s: %w", f.field, err)
		only[f.family] = addr
	}

	return only, errors.Join(errs...)
}

// unknownFields names unknown fields. Fields with a slash, such as "cni.dev/attachments", belong to
// a namespace, and are allowed.
func unknownFields(stdin []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(stdin, &fields); err != nil {
		return err
	}
	for _, known := range strings.Fields("cniVersion name type capabilities ipam dns prevResult " +
		"runtimeConfig args backend snat masqAll markMasqBit externalSetMarkChain conditionsV4 " +
		"conditionsV6") {
		delete(fields, known)
	}

	maps.DeleteFunc(fields, func(name string, _ json.RawMessage) bool {
		return strings.Contains(name, "/")
	})
	if len(fields) == 0 {
		return nil
	}
	return fmt.Errorf("unknown fields: %s",
		strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
}

// checkMappings checks the ports to publish, each for itself.
func (c *config) checkMappings() error {
	var errs []error
	for i, m := range c.RuntimeConfig.PortMappings {
		if err := m.check(); err != nil {
			errs = append(errs, fmt.Errorf("runtimeConfig.portMappings[%d].%w", i, err))
		}
		c.mappings = append(c.mappings, m)
	}

	return errors.Join(errs...)
}

// publications finds the places of the mappings on the host, each once. It refuses one place for
// two ports of the container. The conditions and the families of the container also decide about
// places.
func (c *config) publications() error {
	type claim struct {
		place
		port int
	}
	first := map[claim]int{}
	var errs []error
	for i, m := range c.mappings {
		published := false
		for _, f := range c.families {
			at, ok := m.at(f)
			if !ok {
				continue
			}
			published = true
			p := claim{place{f.name, at, m.protocol}, m.HostPort}
			j, taken := first[p]
			if !taken {
				first[p] = i
				c.published = append(c.published, publication{i, f, at})
			} else if o := c.mappings[j]; o.ContainerPort != m.ContainerPort {
				errs = append(errs, fmt.Errorf("runtimeConfig.portMappings[%d].hostPort: %d: "+
					"portMappings[%d] has it, for container port %d", i, m.HostPort, j,
					o.ContainerPort))
				break
			}
		}

		if !published {
			log.Printf("runtimeConfig.portMappings[%d]: the container has no address of the "+
				"family of hostIP %q that conditions allow: not published", i, m.HostIP)
		}
	}

	return errors.Join(errs...)
}

// check checks a mapping and reads its fields. The error begins with the field.
func (m *mapping) check() (err error) {
	for _, p := range []struct {
		field string
		port  int
	}{{"hostPort", m.HostPort}, {"containerPort", m.ContainerPort}} {
		if p.port < 1 || p.port > 65535 {
			return fmt.Errorf("%s: %d: must be from 1 to 65535", p.field, p.port)
		}
	}

	protocols := map[string]servicemodel.Protocol{"": servicemodel.TCP, "tcp": servicemodel.TCP,
		"udp": servicemodel.UDP, "sctp": servicemodel.SCTP}
	var known bool
	if m.protocol, known = protocols[strings.ToLower(m.Protocol)]; !known {
		return fmt.Errorf("protocol: %s: must be tcp, udp or sctp", m.Protocol)
	}
	if m.HostIP == "" {
		return nil
	}
	if m.hostIP, err = netip.ParseAddr(m.HostIP); err != nil {
		return fmt.Errorf("hostIP: %s: must be an IP address", m.HostIP)
	}
	m.hostIP = m.hostIP.Unmap()
	if err = checkHostIP(m.hostIP); err != nil {
		return fmt.Errorf("hostIP: %s: %w", m.HostIP, err)
	}
	return nil
}

// routeLocal is RTN_LOCAL (include/uapi/linux/rtnetlink.h), which x/sys/unix has for Linux alone.
const routeLocal = 2

// checkHostIP refuses addresses that are not the host's. Otherwise a container that may publish a
// port could capture packets that the host sends to others or forwards. The kernel's route says
// whether an address is the host's. bind(2) does not, because it accepts broadcast addresses, and
// with ip_nonlocal_bind any address.
func checkHostIP(addr netip.Addr) error {
	switch {
	case addr == netip.IPv6Loopback():
		return errors.New("is routed to no container by Linux")
	case addr.IsUnspecified(): // all addresses of a family
		return nil
	}

	routes, err := netlink.RouteGet(addr.AsSlice())
	if err != nil {
		return fmt.Errorf("must be an address of the host: no route: %w", err)
	}
	if len(routes) == 0 || routes[0].Type != routeLocal {
		return errors.New("must be an address of the host")
	}
	return nil
}

// prevResult parses the result of the previous plugin. The error begins after "prevResult". CNI's
// library would panic on an item that is null, so prevResult checks that first.
func (c *config) prevResult() (*current.Result, error) {
	var lists map[string]json.RawMessage
	if err := json.Unmarshal(c.PrevResult, &lists); err != nil {
		return nil, fmt.Errorf(": %w", err)
	}
	for _, name := range []string{"interfaces", "ips", "routes"} {
		var items []json.RawMessage
		if l := lists[name]; l != nil && json.Unmarshal(l, &items) != nil {
			return nil, fmt.Errorf(".%s: must be a list", name)
		}
		for i, item := range items {
			if string(item) == "null" {
				return nil, fmt.Errorf(".%s[%d]: is null", name, i)
			}
		}
	}

	prev, err := version.NewResult(c.CNIVersion, c.PrevResult)
	if err != nil {
		return nil, fmt.Errorf(": %w", err)
	}
	result, err := current.NewResultFromResult(prev)
	if err != nil {
		return nil, fmt.Errorf(": %w", err)
	}
	return result, nil
}

// containerAddrs returns the first address of each family on the container's interface, like
// portmap. Addresses of other interfaces, such as a bridge, are not the container's.
func (c *config) containerAddrs(iface string, only map[string]netip.Addr) ([]family, error) {
	if len(c.PrevResult) == 0 || string(c.PrevResult) == "null" {
		return nil, errors.New("prevResult: is missing: the plugin must be chained after one " +
			"that gives the container an address")
	}

	result, err := c.prevResult()
	if err != nil {
		return nil, fmt.Errorf("prevResult%w", err)
	}
	var families []family
	for i, ip := range result.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if n := ip.Interface; n != nil {
			if *n < 0 || *n >= len(result.Interfaces) {
				return nil, fmt.Errorf("prevResult.ips[%d].interface: %d: interfaces has %d items",
					i, *n, len(result.Interfaces))
			}

			in := result.Interfaces[*n]
			ok = ok && in.Name == iface && in.Sandbox != ""
		}

		f := family{name: "IPv6", container: addr.Unmap()}
		if f.container.Is4() {
			f.name = "IPv4"
		}
		known := slices.ContainsFunc(families, func(o family) bool { return o.name == f.name })
		if ok && !known {
			f.only = only[f.name]
			families = append(families, f)
		}
	}

	if len(families) == 0 && len(c.mappings) > 0 {
		return nil, fmt.Errorf("prevResult.ips: none is of interface %s in the container: no port "+
			"can be published", iface)
	}

	return families, nil
}

// named adds the names of the configuration's fields to errors of the library.
func (c *config) named(err error) error {
	var taken *servicemodel.TakenError
	var field *servicemodel.FieldError
	switch {
	case errors.As(err, &taken):
		return types.NewError(codeTaken, fmt.Sprintf("runtimeConfig.%s.hostPort: %v",
			c.claimant(taken), err), "")
	case c.MarkMasqBit != nil && errors.As(err, &field) && field.Field == "masqueradeMark":
		return types.NewError(types.ErrInvalidNetworkConfig, "markMasqBit: "+
			strconv.Itoa(*c.MarkMasqBit)+": "+err.Error(), "")
	}

	return err
}

// claimant returns the mapping that claims a frontend of another container, such as
// "portMappings[1]".
func (c *config) claimant(taken *servicemodel.TakenError) string {
	claims := func(m mapping) bool {
		return m.protocol == taken.Key.Protocol && taken.Key.Contains(uint16(m.HostPort))
	}
	name := strings.TrimSuffix(strings.TrimSuffix(taken.Claimant.Name.Name, "-IPv4"), "-IPv6")
	for i, m := range c.mappings {
		if claims(m) && name == fmt.Sprintf("portMappings[%d]", i) {
			return name
		}
	}

	// Joined ports have the name of the first one.
	if i := slices.IndexFunc(c.mappings, claims); i >= 0 {
		name = fmt.Sprintf("portMappings[%d]", i)
	}
	return name
}

// parseConditions returns the one address that conditions allow, or an invalid address without
// conditions. Conditions are matches of iptables or nftables, and can contain anything. This plugin
// accepts only one address of the host, in the words of either.
func parseConditions(family string, conditions []string) (netip.Addr, error) {
	words := strings.Fields(strings.Join(conditions, " "))
	keyword := map[string]string{"IPv4": "ip", "IPv6": "ip6"}[family]
	var value string
	switch {
	case len(words) == 0:
		return netip.Addr{}, nil
	case len(words) == 2 && slices.Contains([]string{"-d", "--dst", "--destination"}, words[0]):
		value = words[1]
	case len(words) == 3 && words[0] == keyword && words[1] == "daddr":
		value = words[2]
	default:
		return netip.Addr{}, fmt.Errorf("%s: cannot be honoured: must be \"-d ADDRESS\" or "+
			"\"%s daddr ADDRESS\"; for other conditions have a firewall of your own drop packets",
			strings.Join(words, " "), keyword)
	}

	addr, err := parseSingle(value)
	if err == nil && addr.Is4() != (family == "IPv4") {
		err = errors.New("is of the other family")
	}
	if err == nil {
		err = checkHostIP(addr)
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%s: %w", value, err)
	}
	return addr, nil
}

// parseSingle parses an address, or a range of one address.
func parseSingle(s string) (netip.Addr, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		if !p.IsSingleIP() {
			return netip.Addr{}, errors.New("ranges cannot be honoured, one address can")
		}
		return p.Addr(), nil
	}

	addr, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, errors.New("must be an IP address")
	}
	return addr, nil
}
