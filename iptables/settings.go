package iptables

import (
	"errors"

	"github.com/kernlb/kernlb/internal/settings"
	"github.com/kernlb/kernlb/servicemodel"
)

// settingRules returns the rules of the chain that keeps the node-wide rules: nothing jumps there, and each rule is a comment.
func settingRules(r servicemodel.Rules) []rule {
	var l []rule
	for _, line := range settings.Lines(r) {
		l = append(l, rule{comment: line})
	}
	return l
}

// parseSettings is the inverse of settingRules.
func parseSettings(rules []rule) (servicemodel.Rules, error) {
	var lines []string
	for i := range rules {
		lines = append(lines, rules[i].comment)
	}
	r, err := settings.Parse(lines)
	if err == nil && r.MasqueradeMark == 0 {
		err = errors.New("the setting of the masquerade mark is missing")
	}
	return r, err
}
