package iptables

import (
	"errors"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/settings"
	"github.com/kernlb/kernlb/servicemodel"
)

// localnetBefore is the setting that says what the sysctl route_localnet was before node ports
// answered at localhost, 0 or 1: it is not one of the node's rules, and is there only as long as
// they do.
const localnetBefore = "route-localnet-before"

// settingRules returns the rules of the chain that keeps the node-wide rules: nothing jumps
// there, and each rule is a comment.
func (l *layout) settingRules(s *state) []rule {
	var rules []rule
	for _, line := range settings.Lines(layoutNumber, s.rules) {
		rules = append(rules, rule{comment: line})
	}
	if l.localhost(nft.IPv4, &s.rules) {
		value := "0"
		if s.localnetBefore {
			value = "1"
		}
		rules = append(rules, rule{comment: localnetBefore + " " + value})
	}
	return rules
}

// parseSettings is the inverse of settingRules. Where it is not said what route_localnet was, it
// was off.
func parseSettings(rules []rule) (r servicemodel.Rules, before bool, err error) {
	var lines []string
	for i := range rules {
		if value, ok := strings.CutPrefix(rules[i].comment, localnetBefore+" "); ok {
			before = value == "1"
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
