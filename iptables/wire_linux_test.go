package iptables

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// payloads returns the structs of x_tables in a rule, in their order. It leaves out comments, which
// iptables writes as a match.
func payloads(t *testing.T, exprs []byte) []string {
	t.Helper()
	var l []string
	require.True(t, nft.EachExpr(exprs, func(e nft.ExprInfo) bool {
		var a attrs
		if name := string(e.Name); name == "match" || name == "target" {
			require.True(t, a.parse(e.Attrs))
			if name := cString(a[1]); name != xtComment.Name {
				l = append(l, fmt.Sprintf("%s %d %x", name, a.u32(2), a[3]))
			}
		}

		return true
	}))

	return l
}

// usable returns the sample rules that iptables can write into a chain of a table.
func usable(f *nft.Family, t tableKind) []rule {
	var l []rule
	for _, r := range sampleRules(f) {
		onlyFilter := r.target == targetReject || r.target == targetReset ||
			r.target == targetDrop
		onlyNAT := r.target == targetDNAT || r.target == targetMasquerade
		if r.chain != "" {
			r.chain = "OTHER"
		}
		if t == nat && !onlyFilter || t == filter && !onlyNAT {
			l = append(l, r)
		}
	}

	return l
}

// A rule that iptables writes is read as the same rule, and its structs equal ours byte for byte.
func TestRulesOfIptablesAreReadAndHaveOurBytes(t *testing.T) {
	t.Parallel()
	eachToolset(t, requireOurBytes)
}

func requireOurBytes(t *testing.T, p toolset) {
	t.Helper()
	for _, f := range nft.Families {
		for _, table := range kinds {
			b, ns, _ := opened(t, Config{})
			rules := usable(f, table)
			text := fmt.Sprintf("*%s\n:CHAIN -\n:OTHER -\n", table)
			for j := range rules {
				text += "-A CHAIN " + rules[j].text(f.Model) + "\n"
			}
			p.run(t, ns, text+"COMMIT\n", toolName(f.Model)+"-restore")

			var raw [][]byte
			rd := b.kernel.reader
			rd.request(f, nft.MsgGetRule, "list rules of", "chain")
			rd.req.Text(nft.AttrRuleTable, table.String())
			rd.req.Text(nft.AttrRuleChain, "CHAIN")
			require.NoError(t, rd.conn.Dump(t.Context(), &rd.req, func(m rawnl.Message) error {
				info, err := nft.DecodeRule(m.Attrs)
				raw = append(raw, append([]byte{}, info.Exprs...))
				return err
			}))

			found, err := rd.rules(t.Context(), table.of(f).chain("CHAIN"), false)
			require.NoError(t, err)
			require.Len(t, found, len(rules))
			for j := range rules {
				name := strings.TrimSpace(rules[j].text(f.Model))
				require.Equal(t, rules[j], found[j].rule, name)
				exprs, _ := encodeRule(t, f, &rules[j])
				require.Equal(t, payloads(t, exprs), payloads(t, raw[j]), name)
			}
		}
	}
}

// The kernel accepts every rule, and returns it as it was written.
func TestTheKernelKeepsRules(t *testing.T) {
	t.Parallel()
	for _, f := range nft.Families {
		for _, table := range kinds {
			b, _, _ := opened(t, Config{})
			rules := usable(f, table)
			var batch rawnl.Batch
			e := newEncoder(&batch)
			id := table.of(f).chain("CHAIN")
			e.of(id).EnsureTable()
			e.of(id).CreateChain(&nft.Chain{Name: "OTHER"})
			e.of(id).CreateChain(chainOf(id))
			for j := range rules {
				e.rule(id, nft.Last, 0, &rules[j])
			}
			require.NoError(t, b.kernel.conn.Commit(t.Context(), &batch, 0))
			found, err := b.kernel.reader.rules(t.Context(), id, false)
			require.NoError(t, err)
			require.Len(t, found, len(rules))
			for j := range rules {
				require.Equal(t, rules[j], found[j].rule)
				require.NotZero(t, found[j].handle)
			}
		}
	}
}
