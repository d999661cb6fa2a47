package iptables

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// A comment says what its rule does not: which service the rule is for, and the decisions about the
// service (see package comment for frontends). Comments are written for people first, and for
// Observe second. Everything in a comment except the name of the service also follows from the
// rules, so a wrong comment shows as drift.

// slotComment describes an endpoint of a pool by its weight, if it has one. The comment of the last
// endpoint, which gets the rest of the packets, also names the pool's service port.
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
