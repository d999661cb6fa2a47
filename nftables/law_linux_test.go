package nftables_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/law"
	"github.com/kernlb/kernlb/nftables"
)

func TestWhatAnEngineAcceptedKeepsItsMeaning(t *testing.T) {
	law.Engines(t, law.Test{Sequences: 24, Workers: 4, New: newLawful})
}

func TestWhatPartsHoldKeepsItsMeaning(t *testing.T) {
	law.Parts(t, law.Test{Sequences: 24, Workers: 4, New: newLawful})
}

// newLawful returns a function that creates machines of one network namespace. In half of them, all
// sets are full from the beginning.
func newLawful(t *testing.T) func(*testing.T, *rand.Rand) *law.Machine {
	k, tables := law.NewKernel(t), [2]string{"kernlb", "second"}
	for at, table := range tables {
		for _, f := range []string{"ip ", "ip6 "} {
			k.Tables[at] = append(k.Tables[at], f+table)
		}
	}

	k.UserChains = []string{"user-first", "user-last"}
	k.Ours = func(_ int, name string) bool { return !strings.HasPrefix(name, "user-") }
	older := func(at int, r *rand.Rand) {
		k.FlushAll(0, r)
		if at == 0 {
			name := []string{"752c62b", "c6e37d1", "6878ce2"}[r.IntN(3)]
			k.Run(fmt.Sprintf("include \"testdata/layouts/%s.nft\"", name), "nft", "-f", "-")
		}
	}

	return func(_ *testing.T, r *rand.Rand) *law.Machine {
		full := r.IntN(2) == 0
		return k.Machine(r, law.Machine{Check: nftables.Check,
			Open: func(at int) (backends.Backend, error) {
				return nftables.OpenWith(rawnl.Config{NetNS: k.NetNS(), Wrap: k.Wrap},
					&nftables.Config{NetNS: k.NetNS(), Table: tables[at],
						BeforeDispatch: "user-first", BeforeMasquerade: "user-last"}, full)
			},
			Harms: []law.Harm{
				{Name: "flush the ruleset", Do: k.FlushAll},
				{Name: "flush a set or a chain", Do: k.FlushOne},
				{Name: "an instance of an older layout", Do: older},
				k.Script("add a chain", "add chain TABLE by-hand"),
				k.Script("make it dormant", "list set TABLE settings\n"+ // fails without a table
					"add table TABLE { flags dormant; }"),
				k.Script("another layout", "delete element TABLE settings { 0x00000001 }\n"+
					"add element TABLE settings { 0x00000001 comment \"layout 1000\" }"),
			}})
	}
}
