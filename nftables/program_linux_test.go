package nftables

import (
	"encoding/hex"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
)

func TestProgramIsWhatItsTextSays(t *testing.T) {
	t.Parallel()
	for _, tc := range programCases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, program := range nftPrograms(t) {
				if tc.shape.Has(form.SourceRanges) && !loadsRanges(t, program) {
					t.Logf("%s cannot load ranges of concatenations with a protocol on this kernel",
						program)
					continue
				}

				ns, b := newNS(t)
				p := programPlan(&tc.shape, tc.rules)
				if tc.newer && strings.Contains(runNft(t, ns, program, "", "--version"), "v1.0.6") {
					p.Tables = p.Tables[:1]
				}
				b.kernel.gen = 0
				ok(b.send(t.Context(), p))(t)
				got := runNft(t, ns, program, "", "list", "ruleset")

				// The same plan as text creates the same ruleset.
				ns2, _ := newNS(t)
				runNft(t, ns2, program, p.String(), "-f", "-")
				require.Equal(t, got, runNft(t, ns2, program, "", "list", "ruleset"),
					"written by us, and loaded from our text")

				// Loading the listing again results in the same listing.
				ns3, _ := newNS(t)
				runNft(t, ns3, program, got, "-f", "-")
				require.Equal(t, got, runNft(t, ns3, program, "", "list", "ruleset"),
					"listed, and loaded again")

				// The kernel holds the same bytes, whether we or nft wrote the rules.
				for _, table := range p.Tables {
					require.Equal(t, dumpRules(t, newBackend(t, ns2, nil), table.Family),
						dumpRules(t, newBackend(t, ns, nil), table.Family),
						"expressions of table %s",
						table.Family.Name)
				}
			}
		})
	}
}

// loadsRanges reports whether an nft program can load a rule with source ranges. nft before 1.1
// reverses the one byte of a protocol, and newer kernels refuse that (nft_byteorder.c).
func loadsRanges(t *testing.T, program string) bool {
	t.Helper()
	ns, _ := newNS(t)
	return ns.Do(func() error {
		cmd := exec.Command(program, "-f", "-")
		cmd.Stdin = strings.NewReader(
			"table ip t { set s { type ipv4_addr . inet_proto . inet_service . ipv4_addr; flags " +
				"interval; }\n" +
				"chain c { ip daddr . meta l4proto . th dport . ip saddr != @s drop; }; }\n")
		return cmd.Run()
	}) == nil
}

// dumpRules returns the expressions of all rules in the kernel, in hexadecimal, without the numbers
// of anonymous sets.
func dumpRules(t *testing.T, b *backend, f *nft.Family) []string {
	t.Helper()
	var l []string
	q := b.kernel.reader.About(f, defaultTable)
	require.NoError(t, q.Rules(t.Context(), "", func(r nft.RuleInfo) error {
		text := hex.EncodeToString(setNumber.ReplaceAll(r.Exprs, []byte("__set_")))
		l = append(l, byteorder.ReplaceAllString(text, ""))
		return nil
	}))

	require.NotEmpty(t, l)
	return l
}

// byteorder is an expression of 64 bytes that nft puts between the fields of a range of
// concatenations. It has no effect on the one byte of a protocol.
var byteorder = regexp.MustCompile("400001000e000100" + hex.EncodeToString([]byte("byteorder")) +
	".{94}")

var setNumber = regexp.MustCompile(`__set[0-9]`)
