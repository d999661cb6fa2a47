package nftwire

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// The node-wide rules are written as elements of a set that no rule reads, one setting a comment: they tell a person what the rules
// were made for, and the next process what it finds.

const (
	settingMark      = "masquerade-mark"
	settingPodCIDR   = "pod-cidr"
	settingPodBridge = "pod-bridge"
	settingPodPrefix = "pod-interface-prefix"
	settingNodePorts = "node-ports"
	settingService   = "service-cidr"
	settingLocalhost = "localhost-node-ports"
)

// Settings returns node-wide rules as lines. The zero Rules, of a table that was never written, have none.
func Settings(r servicemodel.Rules) []string {
	if r.MasqueradeMark == 0 {
		return nil
	}
	l := []string{fmt.Sprintf("%s 0x%x", settingMark, r.MasqueradeMark)}
	for _, p := range r.LocalPods.CIDRs {
		l = append(l, settingPodCIDR+" "+p.String())
	}
	if r.LocalPods.Bridge != "" {
		l = append(l, settingPodBridge+" "+r.LocalPods.Bridge)
	}
	if r.LocalPods.InterfacePrefix != "" {
		l = append(l, settingPodPrefix+" "+r.LocalPods.InterfacePrefix)
	}
	for _, p := range r.NodePorts {
		l = append(l, settingNodePorts+" "+p.String())
	}
	for _, p := range r.ServiceCIDRs {
		l = append(l, settingService+" "+p.String())
	}
	if r.LocalhostNodePorts {
		l = append(l, settingLocalhost)
	}
	return l
}

// ParseSettings is the inverse of [Settings]. It fails on a line that it does not know, and names it.
func ParseSettings(lines []string) (servicemodel.Rules, error) {
	var r servicemodel.Rules
	for _, line := range lines {
		name, v, _ := strings.Cut(line, " ")
		var err error
		switch name {
		case settingMark:
			var m uint64
			m, err = strconv.ParseUint(v, 0, 32)
			r.MasqueradeMark = uint32(m)
		case settingPodCIDR:
			r.LocalPods.CIDRs, err = appendPrefix(r.LocalPods.CIDRs, v)
		case settingPodBridge:
			r.LocalPods.Bridge = v
		case settingPodPrefix:
			r.LocalPods.InterfacePrefix = v
		case settingNodePorts:
			r.NodePorts, err = appendPrefix(r.NodePorts, v)
		case settingService:
			r.ServiceCIDRs, err = appendPrefix(r.ServiceCIDRs, v)
		case settingLocalhost:
			r.LocalhostNodePorts = true
		default:
			err = fmt.Errorf("unknown setting")
		}
		if err != nil {
			return servicemodel.Rules{}, fmt.Errorf("setting %q: %w", line, err)
		}
	}
	return r, nil
}

func appendPrefix(l []netip.Prefix, s string) ([]netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return nil, err
	}
	return append(l, p), nil
}
