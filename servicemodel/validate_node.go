package servicemodel

import (
	"fmt"
	"slices"
)

func (p *problems) checkNode(n *Node) {
	p.service, p.object = Name{}, func() string { return "node" }
	if f := n.OnlyFamily; f != 0 && f != IPv4 && f != IPv6 {
		p.add("onlyFamily", uint8(f), "must be IPv4 or IPv6")
	}
	for i, a := range n.Addresses {
		p.checkAddr("addresses", i, "", a, anyUnicast)
	}
	p.checkRanges("nodePortAddresses.cidrs", n.NodePortAddresses.CIDRs)
	if n.NodePortAddresses.Primary && len(n.NodePortAddresses.CIDRs) > 0 {
		p.add("nodePortAddresses.primary", true, "excludes CIDRs; give one or the other")
	}
	p.checkPodDetector(n.LocalPods)
	p.checkRanges("serviceCIDRs", n.ServiceCIDRs)
	checkWord(p, "noEndpoints", n.NoEndpoints, answerReject, answerReset, answerDrop)
	checkWord(p, "forbidden", n.Forbidden, answerReject, answerReset, answerDrop)
	if m := n.MasqueradeMark; m&(m-1) != 0 {
		p.add("masqueradeMark", fmt.Sprintf("%#x", m), "must be exactly one bit")
	}
}

// maxInterface is the maximum length of an interface name (IFNAMSIZ in include/uapi/linux/if.h,
// less the final zero).
const maxInterface = 15

func (p *problems) checkPodDetector(d PodDetector) {
	p.checkRanges("localPods.cidrs", d.CIDRs)
	for _, name := range [...]struct {
		field, text string
	}{{"localPods.bridge", d.Bridge}, {"localPods.interfacePrefix", d.InterfacePrefix}} {
		if len(name.text) > maxInterface {
			p.add(name.field, quote(name.text), fmt.Sprintf("longer than %d bytes", maxInterface))
		} else {
			p.checkText(name.field, name.text, false)
		}
	}
	given := []bool{len(d.CIDRs) > 0, d.Bridge != "", d.InterfacePrefix != ""}
	if n := len(slices.DeleteFunc(given, func(b bool) bool { return !b })); n > 1 {
		p.add("localPods", nil, "give at most one of cidrs, bridge and interfacePrefix")
	}
}
