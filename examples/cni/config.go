package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/kernlb/kernlb/servicemodel"
)

// config is what a runtime writes to the plugin for ADD and CHECK, with the fields of portmap
// (https://www.cni.dev/plugins/current/meta/portmap/).
type config struct {
	types.PluginConf
	// PrevResult is what the plugin before has done, as it wrote it.
	PrevResult json.RawMessage `json:"prevResult"`
	// RuntimeConfig has the ports to publish.
	RuntimeConfig struct {
		PortMappings []mapping `json:"portMappings"`
	} `json:"runtimeConfig"`
	Args json.RawMessage `json:"args"` // of conventions that this plugin has no part in

	Backend              string   `json:"backend"`
	SNAT                 *bool    `json:"snat"`
	MasqAll              bool     `json:"masqAll"`
	MarkMasqBit          *int     `json:"markMasqBit"`
	ExternalSetMarkChain *string  `json:"externalSetMarkChain"`
	ConditionsV4         []string `json:"conditionsV4"`
	ConditionsV6         []string `json:"conditionsV6"`

	// mappings are RuntimeConfig.PortMappings, checked.
	mappings []mapping
	// families are those in which the container has an address.
	families []family
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

// family is what the configuration says about one family of addresses.
type family struct {
	name      string     // "IPv4" or "IPv6"
	container netip.Addr // the container's address
	only      netip.Addr // the address that conditions allow; invalid for all
}

// parse reads and checks what a runtime has written. Nothing is touched.
func parse(stdin []byte, iface string) (*config, error) {
	conf := &config{}
	if err := json.Unmarshal(stdin, conf); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	only, err := conf.checkFields(stdin)
	if err == nil {
		err = conf.checkMappings()
	}
	if err == nil {
		conf.families, err = conf.containerAddrs(iface, only)
	}
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	return conf, nil
}

// checkFields checks the fields that an administrator writes, and returns which addresses the
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

// unknownFields names the fields that nobody knows. Those with a slash belong to somebody's
// namespace, such as "cni.dev/attachments".
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

// checkMappings checks what the runtime wants to publish.
func (c *config) checkMappings() error {
	var errs []error
	for i, m := range c.RuntimeConfig.PortMappings {
		if err := m.check(); err != nil {
			errs = append(errs, fmt.Errorf("runtimeConfig.portMappings[%d].%w", i, err))
		}
		for j, o := range c.mappings {
			if o.HostPort == m.HostPort && o.protocol == m.protocol && o.hostIP == m.hostIP &&
				o.ContainerPort != m.ContainerPort {
				errs = append(errs, fmt.Errorf("runtimeConfig.portMappings[%d].hostPort: %d: "+
					"portMappings[%d] has it, for container port %d", i, m.HostPort, j,
					o.ContainerPort))
			}
		}
		c.mappings = append(c.mappings, m)
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

// checkHostIP refuses addresses that are not the host's, as bind(2) would do: whoever may publish a
// port must not be able to take what the host sends to somebody else, or forwards.
func checkHostIP(addr netip.Addr) error {
	if addr == netip.IPv6Loopback() {
		return errors.New("is routed to no container by Linux")
	}
	conn, err := net.ListenPacket("udp", net.JoinHostPort(addr.String(), "0"))
	if err != nil {
		return fmt.Errorf("must be an address of the host: %w", err)
	}
	return conn.Close()
}

// containerAddrs returns the first address of each family that the container's interface has, as
// portmap does. Addresses of other interfaces, such as those of a bridge, are not the container's.
func (c *config) containerAddrs(iface string, only map[string]netip.Addr) ([]family, error) {
	if len(c.PrevResult) == 0 || string(c.PrevResult) == "null" {
		return nil, errors.New("prevResult: is missing: the plugin must be chained after one " +
			"that gives the container an address")
	}
	prev, err := version.NewResult(c.CNIVersion, c.PrevResult)
	if err != nil {
		return nil, fmt.Errorf("prevResult: %w", err)
	}
	result, err := current.NewResultFromResult(prev)
	if err != nil {
		return nil, fmt.Errorf("prevResult: %w", err)
	}
	var families []family
	for _, ip := range result.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(result.Interfaces) {
			in := result.Interfaces[*i]
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
	return families, nil
}

// named names the fields of the configuration that an error of the library is about.
func (c *config) named(err error) error {
	var taken *servicemodel.TakenError
	var field *servicemodel.FieldError
	switch {
	case errors.As(err, &taken):
		at := strings.TrimSuffix(strings.TrimSuffix(taken.Claimant.Name.Name, "-IPv4"), "-IPv6")
		return types.NewError(codeTaken, fmt.Sprintf("runtimeConfig.%s.hostPort: %v", at, err), "")
	case c.MarkMasqBit != nil && errors.As(err, &field) && field.Field == "masqueradeMark":
		return types.NewError(types.ErrInvalidNetworkConfig, "markMasqBit: "+
			strconv.Itoa(*c.MarkMasqBit)+": "+err.Error(), "")
	}
	return err
}
