package iptables_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/law"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestWhatAnEngineAcceptedKeepsItsMeaning(t *testing.T) {
	law.Engines(t, law.Test{Sequences: 24, Workers: 4, New: newLawful})
}

func TestWhatPartsHoldKeepsItsMeaning(t *testing.T) {
	law.Parts(t, law.Test{Sequences: 24, Workers: 4, New: newLawful})
}

// newLawful returns a function that creates machines in one network namespace.
func newLawful(t *testing.T) func(*testing.T, *rand.Rand) *law.Machine {
	k, prefixes := law.NewKernel(t), [2]string{"KUBE", "SECOND"}
	for at := range prefixes {
		k.Tables[at] = []string{"ip nat", "ip filter", "ip6 nat", "ip6 filter"}
	}
	k.UserChains = []string{"INPUT", "FORWARD", "PREROUTING", "POSTROUTING"}
	k.Always = true
	k.Ours = func(at int, name string) bool { return strings.HasPrefix(name, prefixes[at]+"-") }
	older := func(at int, r *rand.Rand) {
		k.FlushAll(0, r)
		if at == 0 {
			k.Run("", "iptables-restore", "testdata/layouts/752c62b.ipv4")
			k.Run("", "ip6tables-restore", "testdata/layouts/752c62b.ipv6")
		}
	}

	newer := func(at int, _ *rand.Rand) {
		for _, program := range []string{"iptables", "ip6tables"} {
			k.Run("", program, "-t", "nat", "-R", prefixes[at]+"-SETTINGS", "1", "-m", "comment",
				"--comment", "layout 1000")
		}
	}

	return func(_ *testing.T, r *rand.Rand) *law.Machine {
		return k.Machine(r, law.Machine{Check: iptables.Check,
			Open: func(at int) (backends.Backend, error) {
				return iptables.OpenWith(rawnl.Config{NetNS: k.NetNS(), Wrap: k.Wrap},
					&iptables.Config{NetNS: k.NetNS(), Prefix: prefixes[at]})
			},
			Harms: []law.Harm{
				{Name: "flush the ruleset", Do: k.FlushAll},
				{Name: "flush a chain", Do: k.FlushOne},
				{Name: "an instance of an older layout", Do: older},
				{Name: "an instance of a newer layout", Do: newer},
			},
			Node: func(n *servicemodel.Node) {
				n.NoEndpoints, _ = strings.CutPrefix(n.NoEndpoints, "drop")
				n.Forbidden, n.MasqueradeNeighbours = "", false
			}})
	}
}
