package iptables

import "github.com/kernlb/kernlb/servicemodel"

// A packet to a range of ports matches no frontend of exactly its port, and no node port of its
// number. So KUBE-RANGES is last. There each range of an address is one rule, in the order of
// [servicemodel.FrontendKey.CompareRange], and the first rule that matches gets the packet:
//
//	-A KUBE-SERVICES -m comment --comment "ranges of ports" -j KUBE-RANGES
//	-A KUBE-RANGES -d 10.96.0.10/32 -p udp -m udp --dport 10100:10199 … -j KUBE-SVC-…
//	-A KUBE-RANGES -d 10.96.0.10/32 -p udp -m udp --dport 10000:20000 … -j KUBE-SVC-…
//
// Only then does filter know whose source ranges apply. So the rule for the sources of a range is
// in KUBE-RANGES, too, before the rules that reject or drop.

// rangesOf returns the kind of the tree of ranges that belongs to a tree of frontends.
func (k treeKind) rangesOf() (treeKind, bool) {
	switch k {
	case natServices:
		return natRanges, true
	case filterServices:
		return filterRanges, true
	}

	return 0, false
}

// toRanges appends the jump to the ranges of a tree, if there are ranges.
func (l *layout) toRanges(d *dispatch, s *state, rules []rule) []rule {
	if kind, has := d.kind.rangesOf(); has && s.has(l.tree(d.f, kind)) {
		rules = append(rules, rule{comment: "ranges of ports", target: targetJump,
			chain: l.names.ranges()})
	}

	return rules
}

// rangesCome reports whether the first ranges of a tree are added, or the last ranges removed.
func (s *stepper) rangesCome(d *dispatch) bool {
	kind, has := d.kind.rangesOf()
	ranges := s.l.tree(d.f, kind)
	return has && s.old.has(ranges) != s.new.has(ranges)
}

// appendWidth appends the width of a range to its key, so that keys are in the order of ranges at
// an address.
func appendWidth(key []byte, k servicemodel.FrontendKey) []byte {
	width := k.LastPort() - k.Port
	return append(key, byte(width>>8), byte(width))
}

// alike reports whether no match of iptables can distinguish the keys of t.
func (d *dispatch) alike(t tree) bool {
	return d.matchBits(t.bits()) == d.matchBits(len(t[0].key)*8)
}
