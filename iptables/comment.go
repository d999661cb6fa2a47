package iptables

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// A comment says what its rule cannot show: the service of the rule, and the decisions about the
// service (see package comment for frontends). Comments are written first for people, and then for
// Observe. Everything in a comment except the name of the service also follows from the rules, so a
// wrong comment shows as drift.

// slotComment describes an endpoint of a pool by its weight, if it has a weight. The comment of the
// last endpoint, which gets the rest of the packets, also names the pool's service port.
func slotComment(p *servicemodel.Pool, slot int) string {
	var words []string
	if slot == 0 {
		words = append(words, p.ID.Service.String())
		if p.Scheduler != servicemodel.SchedulerDefault {
			words = append(words, "scheduler="+string(p.Scheduler))
		}
	}

	if w := p.Slots[slot].Weight; w != 1 {
		words = append(words, "weight="+strconv.Itoa(int(w)))
	}
	return strings.Join(words, " ")
}

// parseSlot is the inverse of slotComment.
func parseSlot(comment string) (scheduler servicemodel.Scheduler, weight uint16, err error) {
	weight = 1
	for _, word := range strings.Fields(comment) {
		name, value, ok := strings.Cut(word, "=")
		switch {
		case ok && name == "scheduler":
			scheduler = servicemodel.Scheduler(value)
		case ok && name == "weight":
			n, err := strconv.ParseUint(value, 10, 16)
			if err != nil || n == 0 {
				return "", 0, fmt.Errorf("comment %q: weight %q", comment, value)
			}
			weight = uint16(n)
		}
	}

	return scheduler, weight, nil
}

// settingRules returns the rules of the chain with the node-wide settings. No rule jumps to this
// chain, and each of its rules is a comment.
func (l *layout) settingRules(s *state) []rule {
	var rules []rule
	for _, line := range rendering.Settings(layoutNumber, s.rules) {
		rules = append(rules, rule{comment: line})
	}
	if l.localhost(nft.IPv4, &s.rules) {
		rules = append(rules, rule{comment: sysctls.Record(
			sysctls.RouteLocalnet, s.localnet.before)})
		if s.localnet.kept {
			rules = append(rules, rule{comment: guardBefore})
		}
	}

	return rules
}

// guardBefore is the setting that says that a guard existed before ours.
const guardBefore = "localnet-guard-before 1"

// parseSettings is the inverse of settingRules. It returns the settings of node ports at localhost
// even if the rest is faulty.
func parseSettings(rules []rule) (r servicemodel.Rules, n localnet, err error) {
	var lines []string
	for i := range rules {
		line := rules[i].comment
		if _, was, ok := sysctls.ParseRecord(line); ok {
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
