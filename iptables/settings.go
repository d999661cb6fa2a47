package iptables

import (
	"errors"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"

	"github.com/kernlb/kernlb/servicemodel"
)

// settingRules returns the rules of the chain with the node-wide settings. No rule leads to this
// chain, and each of its rules is a comment.
func (l *layout) settingRules(s *state) []rule {
	var rules []rule
	for _, line := range rendering.Settings(layoutNumber, s.rules) {
		rules = append(rules, rule{comment: line})
	}
	if l.localhost(nft.IPv4, &s.rules) {
		rules = append(rules, rule{comment: rendering.RouteLocalnetLine(s.localnet.before)})
		if s.localnet.kept {
			rules = append(rules, rule{comment: guardBefore})
		}
	}
	return rules
}

// guardBefore is the setting that says that a guard existed before ours.
const guardBefore = "localnet-guard-before 1"

// parseSettings is the inverse of settingRules. Without the settings for it, route_localnet was off
// and no guard existed.
func parseSettings(rules []rule) (r servicemodel.Rules, n localnet, err error) {
	var lines []string
	for i := range rules {
		line := rules[i].comment
		if was, ok := rendering.ParseRouteLocalnetLine(line); ok {
			n.before = was
		} else if line == guardBefore {
			n.kept = true
		} else {
			lines = append(lines, line)
		}
	}
	r, err = rendering.ParseSettings(layoutNumber, lines)
	if err == nil && r.MasqueradeMark == 0 {
		err = errors.New("the setting of the masquerade mark is missing")
	}
	return r, n, err
}
