package iptables

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/must"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// sampleRules have every match and every target.
func sampleRules(f *nft.Family) []rule {
	src, dst, to := must.Prefixes("10.0.0.0/9")[0], must.Prefixes("10.96.0.10/32")[0],
		netip.MustParseAddrPort("10.180.0.1:8080")
	if f.Model == sm.IPv6 {
		src, dst, to = must.Prefixes("fd00::/57")[0], must.Prefixes("fd00:10:96::a/128")[0],
			netip.MustParseAddrPort("[fd00:180::1]:8080")
	}

	whole := netip.PrefixFrom(dst.Addr(), dst.Bits()/2).Masked()
	kept := netip.AddrPortFrom(to.Addr(), 0)
	return []rule{
		{},
		{
			dst: dst, proto: sm.TCP, ports: single(80), comment: "default/web:http cluster IP",
			target: targetJump, chain: "KUBE-SVC-XPGD46QRK7WJZT7O",
		},
		{dst: whole, target: targetGoto, chain: "KUBE-IP-10.96.0.0/20"},
		{src: src, notSrc: true, dst: dst, notDst: true, target: targetReturn},
		{src: src, proto: sm.UDP, ports: portRange{30000, 30015}, target: targetAccept},
		{proto: sm.UDP, ports: portRange{0, 1023}, target: targetDrop},
		{proto: sm.SCTP, ports: portRange{0, 1023}, target: targetAccept},
		{proto: sm.UDP, ports: portRange{1, 65535}, target: targetDNAT, to: kept},
		{proto: sm.SCTP, ports: portRange{9000, 9099}, target: targetDNAT, to: to,
			shift: portRange{9000, 9099}},
		{proto: sm.SCTP, ports: single(9000), target: targetReject},
		{proto: sm.TCP, ports: single(9000), target: targetReset},
		{in: "cali+", target: targetReturn},
		{in: "cni0", notIn: true, srcLocal: true, target: targetJump, chain: "KUBE-MARK-MASQ"},
		{dstLocal: true, target: targetJump, chain: "KUBE-NODEPORTS"},
		{srcLocal: true, dstLocal: true, target: targetAccept},
		{state: stateMatch{states: ctNew}, target: targetJump, chain: "KUBE-SERVICES"},
		{state: stateMatch{states: ctRelated | ctEstablished | ctDNAT, not: true},
			target: targetDrop},
		{mark: markMatch{0x4000, 0x4000, true}, target: targetReturn},
		{mark: markMatch{value: 0x4000, mask: 0x4000}, target: targetAccept},
		{target: targetMark, set: markSet{0x4000, 0x4000}},
		{target: targetMark, set: markSet{0x4000, 0}},
		{target: targetMasquerade},
		{proto: sm.TCP, stat: statMatch{kind: statRandom, prob: 715827883}, target: targetDNAT,
			to: to},
		{proto: sm.TCP, stat: statMatch{kind: statNth, every: 3}, target: targetDNAT, to: to,
			comment: `"quoted" 'and' \escaped`},
		{proto: sm.TCP, stat: statMatch{kind: statHash, prob: 715827883, seed: 2},
			target: targetDNAT, to: to},
		{proto: sm.UDP, stat: statMatch{kind: statHash, prob: certain / 2, seed: 1, port: true},
			target: targetDNAT, to: to},
		{proto: sm.TCP, recent: recentMatch{recentUpdate, "KUBE-SEP-SXIVWICOYRO3J4NJ", 10800, 0},
			target: targetDNAT, to: to},
		{proto: sm.TCP, recent: recentMatch{recentUpdate, "KUBE-SEP-SXIVWICOYRO3J4NJ", 60, 23},
			target: targetDNAT, to: to},
		{
			proto: sm.UDP, stat: statMatch{kind: statRandom, prob: certain / 2},
			recent:  recentMatch{kind: recentSet, name: "KUBE-SEP-SXIVWICOYRO3J4NJ"},
			comment: "weight=2", target: targetDNAT, to: to,
		},
		{comment: strings.Repeat("x", maxComment), target: targetReject},
	}
}

// encodeRule returns the expressions and user data of a rule.
func encodeRule(t testing.TB, f *nft.Family, r *rule) (exprs, udata []byte) {
	t.Helper()
	var b rawnl.Batch
	e := newEncoder(&b)
	e.rule(nat.of(f).chain("CHAIN"), nft.Last, 0, r)
	msg := b.Bytes()
	require.NoError(t, b.Err())
	info := ok(nft.DecodeRule(msg[20:]))(t)
	return info.Exprs, info.UserData
}

func TestRandomRulesSurviveTheWire(t *testing.T) {
	t.Parallel()
	const seed = 3
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 3000 {
		f := nft.Families[rng.IntN(2)]
		r := randomRule(rng, f)
		exprs, udata := encodeRule(t, f, &r)
		require.Equal(t, r, newDecoder(f).decodeRule(exprs, udata), "seed %d: %s", seed,
			r.text(f.Model))
	}
}

func randomRule(rng *rand.Rand, f *nft.Family) rule {
	samples := sampleRules(f)
	pick := func() *rule { return &samples[rng.IntN(len(samples))] }
	r := rule{comment: pick().comment}
	if rng.IntN(2) == 0 {
		r.src, r.notSrc = pick().src, false
		r.dst, r.notDst = pick().dst, false
	}

	if rng.IntN(2) == 0 {
		p := pick()
		r.proto, r.ports = p.proto, p.ports
	}

	r.in, r.srcLocal, r.dstLocal, r.state = pick().in, pick().srcLocal, pick().dstLocal,
		pick().state
	r.mark, r.stat, r.recent = pick().mark, pick().stat, pick().recent
	p := pick()
	r.target, r.chain, r.to, r.set, r.shift = p.target, p.chain, p.to, p.set, p.shift
	return r
}

// A whole message, as it is sent to the kernel.
func TestTheMessageOfARule(t *testing.T) {
	t.Parallel()
	if native.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes are those of a little-endian machine")
	}
	var b rawnl.Batch
	e := newEncoder(&b)
	r := rule{dst: must.Prefixes("10.96.0.0/16")[0], proto: sm.TCP, ports: single(80), comment: "x",
		target: targetGoto, chain: "C"}
	e.rule(nat4.chain("K"), nft.Before, 7, &r)

	// NFT_MSG_NEWRULE, request, create; NFPROTO_IPV4
	want := "d4010000" + "060a" + "0104" + "0000000000000000" + "02000000" +
		"08000100" + "6e617400" + "06000200" + "4b000000" + // table nat, chain K
		"0c000600" + "0000000000000007" + // position 7
		"88010480" +
		// [ payload load 2b @ network header + 16 => reg 1 ]
		"34000180" + "0c000100" + "7061796c6f616400" + "24000280" +
		"0800010000000001" + "0800020000000001" + "0800030000000010" + "0800040000000002" +
		// [ cmp eq reg 1 0x0a60 ]
		"2c000180" + "08000100" + "636d7000" + "20000280" +
		"0800010000000001" + "0800020000000000" + "0c000380" + "060001000a600000" +
		// [ payload load 1b @ network header + 9 => reg 1 ] [ cmp eq reg 1 6 ]
		"34000180" + "0c000100" + "7061796c6f616400" + "24000280" +
		"0800010000000001" + "0800020000000001" + "0800030000000009" + "0800040000000001" +
		"2c000180" + "08000100" + "636d7000" + "20000280" +
		"0800010000000001" + "0800020000000000" + "0c000380" + "0500010006000000" +
		// [ payload load 2b @ transport header + 2 => reg 1 ] [ cmp eq reg 1 80 ]
		"34000180" + "0c000100" + "7061796c6f616400" + "24000280" +
		"0800010000000001" + "0800020000000002" + "0800030000000002" + "0800040000000002" +
		"2c000180" + "08000100" + "636d7000" + "20000280" +
		"0800010000000001" + "0800020000000000" + "0c000380" + "0600010000500000" +
		// [ counter pkts 0 bytes 0 ]
		"2c000180" + "0c000100" + "636f756e74657200" + "1c000280" +
		"0c000100" + "0000000000000000" + "0c000200" + "0000000000000000" +
		// [ immediate reg 0 goto -> C ]
		"38000180" + "0e000100" + "696d6d656469617465000000" + "24000280" +
		"0800010000000000" + "18000280" + "14000280" + "08000100fffffffc" + "0600020043000000" +
		"14000580" + "0800010000000006" + "0800020000000000" + // compat: TCP
		"08000700" + "00027800" // user data: comment "x"
	require.Equal(t, want, hex.EncodeToString(b.Bytes()))
}

func TestWhatIsNotUnderstoodEqualsNothing(t *testing.T) {
	t.Parallel()
	r := rule{opaque: true}
	require.False(t, r.same(&r))
	exprs, _ := encodeRule(t, nft.IPv4, &rule{target: targetJump, chain: "KUBE-SERVICES"})
	var b rawnl.Batch
	b.Message(0, 0, 0, 0, 0, rawnl.Object{})
	elem := b.Nest(1)  // NFTA_LIST_ELEM
	b.Text(1, "quota") // NFTA_EXPR_NAME
	b.End(elem)
	got := newDecoder(nft.IPv4).decodeRule(append(b.Bytes()[20:], exprs...), nil)
	require.Equal(t, rule{opaque: true, chain: "KUBE-SERVICES"}, got,
		"where it leads is known all the same")
}

// A rule has at most one match of each kind. A second one does not replace the first.
func TestASecondMatchIsNotUnderstood(t *testing.T) {
	t.Parallel()
	for _, f := range nft.Families {
		for _, r := range sampleRules(f) {
			r.target, r.chain, r.comment = targetNone, "", ""
			r.to, r.set = netip.AddrPort{}, markSet{}
			if r == (rule{}) {
				continue
			}
			once, _ := encodeRule(t, f, &r)
			d := newDecoder(f)
			require.False(t, d.decodeRule(once, nil).opaque, r.text(f.Model))
			require.True(t, d.decodeRule(append(once, once...), nil).opaque, r.text(f.Model))
		}
	}
}

// A protocol can only be compared for equality or inequality. Other comparisons are not understood.
func TestAnotherComparisonIsNotUnderstood(t *testing.T) {
	t.Parallel()
	for op, opaque := range map[uint32]bool{nft.CmpEq: false, nft.CmpGte: true, 2: true} {
		exprs, _ := encodeRule(t, nft.IPv4, &rule{proto: sm.TCP})
		at := bytes.Index(exprs, []byte{8, 0, nft.AttrCmpOp, 0, 0, 0, 0, byte(nft.CmpEq)})
		require.Positive(t, at)
		exprs[at+7] = byte(op)
		require.Equal(t, opaque, newDecoder(nft.IPv4).decodeRule(exprs, nil).opaque, "%v", op)
	}
}

func FuzzDecodeRule(f *testing.F) {
	for _, fam := range nft.Families {
		for _, r := range sampleRules(fam) {
			exprs, udata := encodeRule(f, fam, &r)
			f.Add(exprs, udata)
		}
	}

	f.Fuzz(func(t *testing.T, exprs, udata []byte) {
		for _, fam := range nft.Families {
			r := newDecoder(fam).decodeRule(exprs, udata)
			if r.opaque || len(r.comment) > maxComment {
				continue
			}

			// Encoding a decoded rule and decoding it again gives the same rule.
			again, ud := encodeRule(t, fam, &r)
			require.Equal(t, r, newDecoder(fam).decodeRule(again, ud), r.text(fam.Model))
		}
	})
}

func FuzzDecodeMessages(f *testing.F) {
	var b rawnl.Batch
	e := newEncoder(&b)
	e.rule(nat4.chain("KUBE-SERVICES"), nft.Last, 0, &rule{target: targetAccept})
	f.Add(append([]byte{}, b.Bytes()[20:]...))
	b.Reset()
	e.tables[nat4].CreateChain(&baseChains(nat)[0])
	f.Add(append([]byte{}, b.Bytes()[20:]...))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := nft.DecodeChain(data); err != nil {
			require.ErrorIs(t, err, rawnl.ErrMalformed)
		} else {
			require.LessOrEqual(t, len(c.Name), len(data))
		}

		if r, err := newDecoder(nft.IPv6).decodeRuleMessage(data); err != nil {
			require.ErrorIs(t, err, rawnl.ErrMalformed)
		} else {
			require.LessOrEqual(t, len(r.chain), len(data))
		}
	})
}
