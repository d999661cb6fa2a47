package nftables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// Priorities move base chains of an instance among other programs' base chains. Each value is added
// to a priority.
//
// The kernel runs all chains of type nat of a hook together, at the priorities -100 (destinations)
// and 100 (sources), and a chain's own priority only orders it among them (nf_nat_register_fn). The
// first chain that translates a connection decides. So the chains of source ranges (-110) and of
// neighbours (-99), which must come before and after the translation, do not move.
type Priorities struct {
	// DNAT moves nat-prerouting and nat-output (priority -100). It is from -99 to 99. The kernel
	// takes no chain of type nat at -200 or below.
	DNAT int
	// Filter moves filter-input, filter-forward and filter-output (priority 0). It is from -90 to
	// 199: after the translation of destinations, and before the kernel confirms the connection.
	Filter int
	// SNAT moves nat-postrouting (priority 100). It is from -99 to 199.
	SNAT int
}

// place is the place of an instance's chains among the rules of other programs.
type place struct {
	prio Priorities
	// dispatch is the chain of the user to which nat-prerouting and nat-output jump first.
	// masquerade is the chain to which nat-postrouting jumps. Empty means none.
	dispatch, masquerade string
}

// place returns the place that the configuration asks for. The errors are *servicemodel.FieldError
// values.
func (c *Config) place() (p place, err error) {
	if c == nil {
		return p, nil
	}
	p = place{prio: c.Priorities, dispatch: c.BeforeDispatch, masquerade: c.BeforeMasquerade}
	wrong := func(field string, value any, reason string) error {
		return &servicemodel.FieldError{Object: "nftables configuration", Field: field,
			Value: fmt.Sprint(value), Reason: reason}
	}
	for _, l := range []struct {
		field            string
		value, low, high int
	}{
		{"Priorities.DNAT", p.prio.DNAT, -99, 99}, {"Priorities.Filter", p.prio.Filter, -90, 199},
		{"Priorities.SNAT", p.prio.SNAT, -99, 199},
	} {
		if l.value < l.low || l.value > l.high {
			return p, wrong(l.field, l.value, fmt.Sprintf("must be from %d to %d", l.low, l.high))
		}
	}
	for _, c := range []struct{ field, name string }{
		{"BeforeDispatch", p.dispatch}, {"BeforeMasquerade", p.masquerade},
	} {
		switch {
		case c.name == "":
		case !rendering.IsTableName(c.name) || !strings.HasPrefix(c.name, userPrefix):
			return p, wrong(c.field, c.name, fmt.Sprintf("must begin with %q and have letters, "+
				"digits, \"_\", \"-\" and \".\" only, %d bytes at most", userPrefix,
				rendering.MostTableName))
		case p.dispatch == p.masquerade:
			return p, wrong(c.field, c.name, "must differ from the other chain")
		}
	}
	return p, nil
}

// userPrefix begins the names of chains that belong to the user. No chain of an instance begins so.
const userPrefix = "user-"

// users makes a chain of the user if it is configured, and lets other chains jump there.
func (b *builder) users(chain string, from ...*nft.ProgramChain) {
	if chain == "" {
		return
	}
	b.Chain(chain)
	for _, c := range from {
		c.Add(nft.Jump(chain))
	}
}

// own returns the chains of a program without the user's. The instance makes these, and never
// touches their rules.
func (p *place) own(program nft.Program) nft.Program {
	return slices.DeleteFunc(slices.Clone(program), func(c *nft.ProgramChain) bool {
		return p.isUsers(c.Name)
	})
}

// isUsers reports whether a chain is the user's.
func (p *place) isUsers(chain string) bool {
	return chain != "" && (chain == p.dispatch || chain == p.masquerade)
}
