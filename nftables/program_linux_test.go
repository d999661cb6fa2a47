package nftables

import (
	"encoding/binary"
	"encoding/hex"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

func TestProgramIsWhatItsTextSays(t *testing.T) {
	t.Parallel()
	for _, tc := range programCases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, program := range nftPrograms(t) {
				if tc.shape.has(sourceRanges) && !loadsRanges(t, program) {
					t.Logf("%s cannot load ranges of concatenations with a protocol on this kernel",
						program)
					continue
				}
				ns, b := newNS(t)
				p := programPlan(&tc.shape, tc.rules)
				if tc.newer && strings.Contains(runNft(t, ns, program, "", "--version"), "v1.0.6") {
					p.tables = p.tables[:1]
				}
				b.kernel.gen = 0
				ok(b.send(t.Context(), p))(t)
				got := runNft(t, ns, program, "", "list", "ruleset")

				// The same plan as text makes the same ruleset.
				ns2, _ := newNS(t)
				runNft(t, ns2, program, p.String(), "-f", "-")
				require.Equal(t, got, runNft(t, ns2, program, "", "list", "ruleset"),
					"written by us, and loaded from our text")

				// The listing loads again, and gives the same listing.
				ns3, _ := newNS(t)
				runNft(t, ns3, program, got, "-f", "-")
				require.Equal(t, got, runNft(t, ns3, program, "", "list", "ruleset"),
					"listed, and loaded again")

				// The kernel holds the same bytes, whether we or nft wrote the rules.
				for _, table := range p.tables {
					require.Equal(t, dumpRules(t, newBackend(t, ns2, nil), table.f),
						dumpRules(t, newBackend(t, ns, nil), table.f), "expressions of table %s",
						table.f.Name)
				}
			}
		})
	}
}

// loadsRanges reports whether an nft can load a rule with source ranges. nft before 1.1 reverses
// the one byte of a protocol, and newer kernels refuse that (nft_byteorder.c).
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

// dumpRules returns the expressions of all rules as the kernel holds them, in hexadecimal, without
// the numbers of anonymous sets.
func dumpRules(t *testing.T, b *backend, f *nft.Family) []string {
	t.Helper()
	var l []string
	req := b.kernel.get(f, nft.MsgGetRule, "rules", "")
	req.Text(1, defaultTable)
	require.NoError(t, b.kernel.conn.Dump(t.Context(), req, func(m rawnl.Message) error {
		it := rawnl.Attrs(m.Attrs)
		for it.Next() {
			if it.Type() == 4 { // NFTA_RULE_EXPRESSIONS
				l = append(l,
					byteorder.ReplaceAllString(
						hex.EncodeToString(setNumber.ReplaceAll(it.Data(), []byte("__set_"))), ""))
			}
		}
		return it.Err()
	}))
	require.NotEmpty(t, l)
	return l
}

// byteorder is an expression of 64 bytes that nft puts between the fields of a range of
// concatenations. It has no effect on the one byte of a protocol.
var byteorder = regexp.MustCompile("400001000e000100" + hex.EncodeToString([]byte("byteorder")) +
	".{94}")

var setNumber = regexp.MustCompile(`__set[0-9]`)

// google/nftables decodes the same rules from the kernel as from our messages.
func TestOthersReadOurRules(t *testing.T) {
	t.Parallel()
	for _, tc := range programCases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ns, b := newNS(t)
			p := programPlan(&tc.shape, tc.rules)
			b.kernel.gen = 0
			ok(b.send(t.Context(), p))(t)
			kernel := ok(nftables.New(nftables.WithNetNSFd(ns.Fd())))(t)
			for i := range p.tables {
				fp := p.tables[i]
				for _, c := range fp.program {
					msgs := rulesOf(t, fp.f, c)
					if slices.ContainsFunc(msgs, func(m netlink.Message) bool {
						return byte(m.Header.Type) != nft.MsgNewRule // an anonymous set
					}) || slices.ContainsFunc(c.Rules, func(r nft.Rule) bool {
						return strings.Contains(r.Text(), "ct original ")
					}) {
						continue // google/nftables cannot decode numbers of sets, and directions
					}
					sent := ok(nftables.New(nftables.WithTestDial(
						func([]netlink.Message) ([]netlink.Message, error) {
							return msgs, nil
						})))(t)
					want := rulesRead(t, sent, fp.f, c.Name)
					require.Equal(t, want, rulesRead(t, kernel, fp.f, c.Name), c.Name)
					require.Len(t, want, len(c.Rules))
				}
			}
		})
	}
}

// rulesOf returns the messages that make the rules of a chain.
func rulesOf(t *testing.T, f *nft.Family, c *nft.ProgramChain) (l []netlink.Message) {
	t.Helper()
	var b rawnl.Batch
	nft.Program{c}.WriteRules(nft.NewEncoder(&b, f, defaultTable))
	for rest := b.Bytes(); len(rest) > 0; {
		var m netlink.Message
		n := int(binary.NativeEndian.Uint32(rest))
		require.NoError(t, m.UnmarshalBinary(rest[:n]))
		l = append(l, m)
		rest = rest[n:]
	}
	return l
}

// rulesRead returns the expressions and user data of the rules of a chain.
func rulesRead(t *testing.T, conn *nftables.Conn, f *nft.Family, chain string) (l [][]any) {
	t.Helper()
	table := &nftables.Table{Name: defaultTable, Family: nftables.TableFamily(f.NFProto)}
	rules, err := conn.GetRules(table, &nftables.Chain{Name: chain})
	require.NoError(t, err)
	for _, r := range rules {
		for _, e := range r.Exprs {
			if e, ok := e.(*expr.NAT); ok { // the kernel derives these fields from the others
				e.RegAddrMax, e.RegProtoMax, e.Specified = e.RegAddrMin, e.RegProtoMin, true
			}
		}
		l = append(l, []any{r.Exprs, r.UserData})
	}
	return l
}
