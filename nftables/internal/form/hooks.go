package form

import (
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
)

// The priorities of base chains (enum nf_ip_hook_priorities in
// include/uapi/linux/netfilter_ipv4.h). Source ranges are checked just before DNAT, while the
// destination is still the address of the service. Clients are learnt just after DNAT.
const (
	prioSources = prioDNAT - 10
	prioDNAT    = -100
	prioLearn   = prioDNAT + 1
	prioFilter  = 0
	prioSNAT    = 100
)

// UserPrefix is the prefix of the names of user-defined chains. No chain of an instance has this
// prefix.
const UserPrefix = "user-"

// Hooks contains the priorities of the base chains, and the user-defined chains to which they jump.
type Hooks struct {
	// DNAT, Filter and SNAT are added to the priorities of base chains.
	DNAT, Filter, SNAT int
	// Dispatch is the user-defined chain to which nat-prerouting and nat-output jump first.
	// Masquerade is the chain to which nat-postrouting jumps. Empty means no chain.
	Dispatch, Masquerade string
}

// Own returns the chains of a program except the user-defined chains. The instance creates the
// user-defined chains, and never touches their rules.
func (h *Hooks) Own(program nft.Program) nft.Program {
	return slices.DeleteFunc(slices.Clone(program), func(c *nft.ProgramChain) bool {
		return h.IsUsers(c.Name)
	})
}

// IsUsers reports whether a chain is user-defined.
func (h *Hooks) IsUsers(chain string) bool {
	return chain != "" && (chain == h.Dispatch || chain == h.Masquerade)
}
