package iptables

import (
	"errors"

	"github.com/kernlb/kernlb/internal/loopback"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/settings"
	"github.com/kernlb/kernlb/servicemodel"
)

// settingRules returns the rules of the chain that keeps the node-wide rules: nothing jumps
// there, and each rule is a comment.
func (l *layout) settingRules(s *state) []rule {
	var rules []rule
	for _, line := range settings.Lines(layoutNumber, s.rules) {
		rules = append(rules, rule{comment: line})
	}
	if l.localhost(nft.IPv4, &s.rules) {
		rules = append(rules, rule{comment: loopback.Line(s.localnetBefore)})
	}
	return rules
}

// parseSettings is the inverse of settingRules. Where it is not said what route_localnet was, it
// was off.
func parseSettings(rules []rule) (r servicemodel.Rules, before bool, err error) {
	var lines []string
	for i := range rules {
		if was, ok := loopback.ParseLine(rules[i].comment); ok {
			before = was
			continue
		}
		lines = append(lines, rules[i].comment)
	}
	r, err = settings.Parse(layoutNumber, lines)
	if err == nil && r.MasqueradeMark == 0 {
		err = errors.New("the setting of the masquerade mark is missing")
	}
	return r, before, err
}
