package iptables

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// The node-wide rules are written as comments of a chain that nothing jumps to, one setting a rule: they tell a person what the rules were
// made for, and the next process what it finds.
const (
	settingMark      = "masquerade-mark"
	settingPodCIDR   = "pod-cidr"
	settingPodBridge = "pod-bridge"
	settingPodPrefix = "pod-interface-prefix"
	settingNodePorts = "node-ports"
	settingService   = "service-cidr"
	settingLocalhost = "localhost-node-ports"
)

// settingRules returns the rules of the chain.
func settingRules(r servicemodel.Rules) []rule {
	var l []rule
	add := func(name, value string) { l = append(l, rule{comment: strings.TrimSuffix(name+" "+value, " ")}) }
	add(settingMark, fmt.Sprintf("0x%x", r.MasqueradeMark))
	for _, p := range r.LocalPods.CIDRs {
		add(settingPodCIDR, p.String())
	}
	if r.LocalPods.Bridge != "" {
		add(settingPodBridge, r.LocalPods.Bridge)
	}
	if r.LocalPods.InterfacePrefix != "" {
		add(settingPodPrefix, r.LocalPods.InterfacePrefix)
	}
	for _, p := range r.NodePorts {
		add(settingNodePorts, p.String())
	}
	for _, p := range r.ServiceCIDRs {
		add(settingService, p.String())
	}
	if r.LocalhostNodePorts {
		add(settingLocalhost, "")
	}
	return l
}

// parseSettings is the inverse of settingRules.
func parseSettings(rules []rule) (servicemodel.Rules, error) {
	var s servicemodel.Rules
	for i := range rules {
		if err := parseSetting(&s, rules[i].comment); err != nil {
			return servicemodel.Rules{}, fmt.Errorf("setting %q: %w", rules[i].comment, err)
		}
	}
	if s.MasqueradeMark == 0 {
		return servicemodel.Rules{}, fmt.Errorf("setting %s is missing", settingMark)
	}
	return s, nil
}

func parseSetting(s *servicemodel.Rules, line string) (err error) {
	name, value, _ := strings.Cut(line, " ")
	switch name {
	case settingMark:
		var m uint64
		m, err = strconv.ParseUint(value, 0, 32)
		s.MasqueradeMark = uint32(m)
	case settingPodCIDR:
		s.LocalPods.CIDRs, err = appendPrefix(s.LocalPods.CIDRs, value)
	case settingPodBridge:
		s.LocalPods.Bridge = value
	case settingPodPrefix:
		s.LocalPods.InterfacePrefix = value
	case settingNodePorts:
		s.NodePorts, err = appendPrefix(s.NodePorts, value)
	case settingService:
		s.ServiceCIDRs, err = appendPrefix(s.ServiceCIDRs, value)
	case settingLocalhost:
		s.LocalhostNodePorts = true
	default:
		err = fmt.Errorf("unknown")
	}
	return err
}

func appendPrefix(l []netip.Prefix, s string) ([]netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return nil, err
	}
	return append(l, p), nil
}
