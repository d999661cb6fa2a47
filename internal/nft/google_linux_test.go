package nft

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// exprsOf returns the expressions of a rule in wire form.
func exprsOf(t *testing.T, f *Family, r Rule) []ExprInfo {
	t.Helper()
	var b rawnl.Batch
	NewEncoder(&b, f, "lb").rule("chain", r)
	rules := attributes(t, &b, MsgNewRule)
	require.Len(t, rules, 1)
	info, err := DecodeRule(rules[0])
	require.NoError(t, err)
	var l []ExprInfo
	require.True(t, EachExpr(info.Exprs, func(e ExprInfo) bool {
		l = append(l, e)
		return true
	}))

	return l
}

func cmp(op expr.CmpOp, data ...byte) *expr.Cmp {
	return &expr.Cmp{Op: op, Register: unix.NFT_REG_1, Data: data}
}

func masked(mask, xor []byte) *expr.Bitwise {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(mask)), Mask: mask,
		Xor: xor}
}

var (
	zero4   = make([]byte, 4)
	getMark = &expr.Meta{Key: expr.MetaKeyMARK, Register: 1}
	putMark = &expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true}
	daddr   = &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16,
		Len: 4}
	saddr6 = &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 8,
		Len: 16}
	l4proto  = &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 9}
	l4proto6 = &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 2}
)

func dport(reg uint32) *expr.Payload {
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2,
		Len: 2}
}

func ct(key expr.CtKey) *expr.Ct { return &expr.Ct{Key: key, Register: 1} }

func verdict(kind expr.VerdictKind, chain string) *expr.Verdict {
	return &expr.Verdict{Kind: kind, Chain: chain}
}

// vocabulary has each match and statement, its text, and its expressions in google/nftables. nil
// stands for a key of the flow's original direction: see TestDirectionsOfFlows.
var vocabulary = []struct {
	f     *Family
	rule  Rule
	text  string
	exprs []expr.Any
}{
	{IPv4, CTStateNew, "ct state new", []expr.Any{ct(expr.CtKeySTATE),
		masked(Native32(expr.CtStateBitNEW), zero4), cmp(expr.CmpOpNeq, zero4...)}},
	{IPv4, CTNotKnown, "ct state ! established,related", []expr.Any{ct(expr.CtKeySTATE),
		masked(Native32(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), zero4),
		cmp(expr.CmpOpEq, zero4...)}},
	{IPv4, CTStatusDNAT, "ct status dnat", []expr.Any{ct(expr.CtKeySTATUS),
		masked(Native32(0x20), zero4), cmp(expr.CmpOpNeq, zero4...)}},
	{IPv4, CTUnconfirmed, "ct status ! confirmed", []expr.Any{ct(expr.CtKeySTATUS),
		masked(Native32(8), zero4), cmp(expr.CmpOpEq, zero4...)}},
	{IPv4, CTNotDNAT, "ct status ! dnat", []expr.Any{ct(expr.CtKeySTATUS),
		masked(Native32(0x20), zero4), cmp(expr.CmpOpEq, zero4...)}},
	{IPv4, CTUntranslated, "ct status & 0x30 == 0x0", []expr.Any{ct(expr.CtKeySTATUS),
		masked(Native32(0x30), zero4), cmp(expr.CmpOpEq, zero4...)}},
	{IPv4, CTDirOriginal, "ct direction original", []expr.Any{ct(expr.CtKeyDIRECTION),
		cmp(expr.CmpOpEq, 0)}},
	{IPv4, CTDirReply, "ct direction reply", []expr.Any{ct(expr.CtKeyDIRECTION),
		cmp(expr.CmpOpEq, 1)}},
	{IPv4, CTProtocol(servicemodel.TCP, servicemodel.SCTP), "ct protocol { tcp, sctp }",
		[]expr.Any{ct(expr.CtKeyPROTOCOL), &expr.Lookup{SourceRegister: 1, SetName: "__set%d",
			SetID: unix.NFPROTO_IPV4<<16 + 1}}},
	{IPv4, FIBSaddrLocal, "fib saddr type local", []expr.Any{&expr.Fib{Register: 1,
		FlagSADDR: true, ResultADDRTYPE: true}, cmp(expr.CmpOpEq, Native32(unix.RTN_LOCAL)...)}},
	{IPv4, FIBDaddrNotLocal, "fib daddr type != local", []expr.Any{&expr.Fib{Register: 1,
		FlagDADDR: true, ResultADDRTYPE: true}, cmp(expr.CmpOpNeq, Native32(unix.RTN_LOCAL)...)}},
	{IPv4, FIBDaddrByIIF, "fib daddr . iif oif exists", []expr.Any{&expr.Fib{Register: 1,
		FlagDADDR: true, FlagIIF: true, FlagPRESENT: true, ResultOIF: true},
		cmp(expr.CmpOpEq, Native32(1)...)}},
	{IPv4, L4ProtoTCP, "meta l4proto tcp", []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, cmp(expr.CmpOpEq, unix.IPPROTO_TCP)}},
	{IPv4, IIFNameNot("cni0"), `iifname != "cni0"`, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		cmp(expr.CmpOpNeq, []byte("cni0\000\000\000\000\000\000\000\000\000\000\000\000")...)}},
	{IPv4, IIFNameNot("veth*"), `iifname != "veth*"`, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		cmp(expr.CmpOpNeq, []byte("veth")...)}},
	{IPv4, MarkIs(0xc0, 0x40), "meta mark & 0x000000c0 == 0x00000040", []expr.Any{getMark,
		masked(Native32(0xc0), zero4), cmp(expr.CmpOpEq, Native32(0x40)...)}},
	{IPv4, MarkOr(0x40), "meta mark set meta mark | 0x00000040", []expr.Any{getMark,
		masked(Native32(0xffffffbf), Native32(0x40)), putMark}},
	{IPv4, MarkXor(0x40), "meta mark set meta mark ^ 0x00000040", []expr.Any{getMark,
		masked(Native32(0xffffffff), Native32(0x40)), putMark}},
	{IPv4, MarkAnd(0x40), "meta mark set meta mark & 0x00000040", []expr.Any{getMark,
		masked(Native32(0x40), zero4), putMark}},
	{IPv4, MarkAndOr(0x40, 0x80), "meta mark set meta mark & 0x00000040 | 0x00000080",
		[]expr.Any{getMark, masked(Native32(0x40), Native32(0x80)), putMark}},
	{IPv4, IPv4.DaddrWithin(netip.MustParsePrefix("10.96.0.0/16")), "ip daddr 10.96.0.0/16",
		[]expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16,
			Len: 2}, cmp(expr.CmpOpEq, 10, 96)}},
	{IPv4, IPv4.DaddrNotWithin(netip.MustParsePrefix("10.96.0.1/12")), "ip daddr != 10.96.0.0/12",
		[]expr.Any{daddr, masked([]byte{255, 240, 0, 0}, zero4), cmp(expr.CmpOpNeq, 10, 96, 0, 0)}},
	{IPv6, IPv6.SaddrNotWithin(netip.MustParsePrefix("fd00::1/128")), "ip6 saddr != fd00::1",
		[]expr.Any{saddr6, cmp(expr.CmpOpNeq, netip.MustParseAddr("fd00::1").AsSlice()...)}},
	{IPv4, Concat{IPv4.Daddr, L4Proto, DPort}.In("services"),
		"ip daddr . meta l4proto . th dport @services",
		[]expr.Any{daddr, l4proto, dport(10),
			&expr.Lookup{SourceRegister: 1, SetName: "services"}}},
	{IPv6, Concat{IPv6.Saddr, L4Proto}.NotIn("sources"),
		"ip6 saddr . meta l4proto != @sources",
		[]expr.Any{saddr6, l4proto6, &expr.Lookup{SourceRegister: 1, SetName: "sources",
			Invert: true}}},
	{IPv4, SetMark(Concat{IPv4.Daddr}.Map("marks")), "meta mark set ip daddr map @marks",
		[]expr.Any{daddr, &expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true,
			SetName: "marks"}, putMark}},
	{IPv4, IPv4.DNAT(Concat{IPv4.Daddr, NumgenRandom(3)}.Map("endpoints")),
		"dnat ip to ip daddr . numgen random mod 3 map @endpoints",
		[]expr.Any{daddr, &expr.Numgen{Register: 9, Modulus: 3, Type: unix.NFT_NG_RANDOM},
			&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true,
				SetName: "endpoints"},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1,
				RegProtoMin: 9}}},
	{IPv6, IPv6.DNATAddrPort(Concat{L4Proto}.Map("endpoints"), Concat{L4Proto}.Map("ports")),
		"dnat ip6 to meta l4proto map @endpoints : meta l4proto map @ports",
		[]expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true,
				SetName: "endpoints"},
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 2},
			&expr.Lookup{SourceRegister: 2, DestRegister: 2, IsDestRegSet: true,
				SetName: "ports"},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV6, RegAddrMin: 1,
				RegProtoMin: 2}}},
	{IPv4, OriginalDPort, "th dport set ct original proto-dst", []expr.Any{nil,
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: 1,
			Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}},
	{IPv4, IPv4.SNATAddr(Concat{IPv4.Daddr}.Map("sources")),
		"snat ip to ip daddr map @sources fully-random",
		[]expr.Any{daddr, &expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true,
			SetName: "sources"}, &expr.NAT{Type: expr.NATTypeSourceNAT,
			Family: unix.NFPROTO_IPV4, RegAddrMin: 1, FullyRandom: true}}},
	{IPv4, IPv4.Reject(), "reject with icmp port-unreachable",
		[]expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 3}}},
	{IPv6, IPv6.Reject(), "reject with icmpv6 port-unreachable",
		[]expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 4}}},
	{IPv4, ResetTCP, "reject with tcp reset",
		[]expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}},
	{IPv4, Masquerade, "masquerade fully-random", []expr.Any{&expr.Masq{FullyRandom: true}}},
	{IPv4, Counter, "counter packets 0 bytes 0", []expr.Any{&expr.Counter{}}},
	{IPv4, Drop, "drop", []expr.Any{verdict(expr.VerdictDrop, "")}},
	{IPv4, Accept, "accept", []expr.Any{verdict(expr.VerdictAccept, "")}},
	{IPv4, Jump("a"), "jump a", []expr.Any{verdict(expr.VerdictJump, "a")}},
	{IPv4, Goto("b"), "goto b", []expr.Any{verdict(expr.VerdictGoto, "b")}},
	{IPv6, JHashVMap(IPv6.Saddr, 7, []Verdict{{VerdictGoto, "a"}, {VerdictJump, "b"}}),
		"jhash ip6 saddr mod 2 seed 0x7 vmap { 0 : goto a, 1 : jump b }",
		[]expr.Any{&expr.Payload{DestRegister: 2, Base: expr.PayloadBaseNetworkHeader, Offset: 8,
			Len: 16},
			&expr.Hash{SourceRegister: 2, DestRegister: 1, Length: 16, Modulus: 2, Seed: 7},
			&expr.Lookup{SourceRegister: 1, IsDestRegSet: true, SetName: "__map%d",
				SetID: unix.NFPROTO_IPV6<<16 + 1}}},
	{IPv4, Update("affinity", Concat{IPv4.Daddr, CTOriginalDPort}, 90*time.Second, Concat{DPort}),
		"update @affinity { ip daddr . ct original proto-dst timeout 1m30s : th dport }",
		[]expr.Any{daddr, nil, dport(2), &expr.Dynset{SrcRegKey: 1, SrcRegData: 2,
			SetName: "affinity", Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: 90 * time.Second}}},
}

// google/nftables reads our messages as the same rules, and sends the same messages for these
// rules. It may send additional attributes, with zeros.
func TestVocabularyIsWhatItsTextSays(t *testing.T) {
	t.Parallel()
	for _, tc := range vocabulary {
		t.Run(tc.text, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.text, tc.rule.Text())
			sent := exprsOf(t, tc.f, tc.rule)
			require.Len(t, sent, len(tc.exprs))
			for i, want := range tc.exprs {
				if want != nil {
					requireSame(t, tc.f, want, sent[i])
				}
			}
		})
	}
}

func requireSame(t *testing.T, f *Family, want expr.Any, sent ExprInfo) {
	t.Helper()
	got := reflect.New(reflect.TypeOf(want).Elem()).Interface().(expr.Any)
	require.NoError(t, expr.Unmarshal(f.NFProto, sent.Attrs, got))
	require.Equal(t, want, got)
	theirs, err := expr.Marshal(f.NFProto, want)
	require.NoError(t, err)
	list := append([]byte{byte(4 + len(theirs)), 0, listElem, 0}, theirs...)
	require.True(t, EachExpr(list, func(e ExprInfo) bool {
		require.Equal(t, string(e.Name), string(sent.Name))
		ours, rest := attributesByType(t, sent.Attrs), attributesByType(t, e.Attrs)
		for typ, data := range ours {
			require.Equal(t, rest[typ], data, "attribute %d of %s", typ, e.Name)
			delete(rest, typ)
		}

		for typ, data := range rest {
			require.Equal(t, make([]byte, len(data)), data, "attribute %d of %s", typ, e.Name)
		}
		return true
	}))
}

func attributesByType(t *testing.T, data []byte) map[uint16][]byte {
	t.Helper()
	m := map[uint16][]byte{}
	it := rawnl.Attrs(data)
	for it.Next() {
		m[it.Type()] = it.Data()
	}
	require.NoError(t, it.Err())
	return m
}

// Keys of the flow's original direction have a direction of one byte, which google/nftables neither
// reads nor writes.
func TestDirectionsOfFlows(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		s   Selector
		key byte
	}{
		{CTOriginalProtocol, unix.NFT_CT_PROTOCOL},
		{CTOriginalDPort, unix.NFT_CT_PROTO_DST},
		{IPv4.CTSaddr, unix.NFT_CT_SRC_IP},
		{IPv4.CTDaddr, unix.NFT_CT_DST_IP},
		{IPv6.CTSaddr, unix.NFT_CT_SRC_IP6},
		{IPv6.CTDaddr, unix.NFT_CT_DST_IP6},
	} {
		sent := exprsOf(t, IPv4, tc.s.In("set"))[0]
		require.Equal(t, "ct", string(sent.Name))
		require.Equal(t, map[uint16][]byte{
			unix.NFTA_CT_KEY:       {0, 0, 0, tc.key},
			unix.NFTA_CT_DREG:      {0, 0, 0, unix.NFT_REG_1},
			unix.NFTA_CT_DIRECTION: {0},
		}, attributesByType(t, sent.Attrs), tc.s.text)
		require.Error(t, expr.Unmarshal(IPv4.NFProto, sent.Attrs, &expr.Ct{}))
	}
}

// Expressions that only the iptables backend uses.
func TestExpressionsOfIptables(t *testing.T) {
	t.Parallel()
	info := xt.Unknown{1, 2, 3, 4, 5, 6, 7, 8}
	for _, tc := range []struct {
		write func(b *rawnl.Batch)
		want  expr.Any
	}{
		{func(b *rawnl.Batch) { AppendRange(b, []byte{1, 2}, []byte{3, 4}) },
			&expr.Range{Register: 1, FromData: []byte{1, 2}, ToData: []byte{3, 4}}},
		{func(b *rawnl.Batch) { AppendCmp(b, CmpLte, []byte{1}) }, cmp(expr.CmpOpLte, 1)},
		{func(b *rawnl.Batch) { AppendVerdict(b, VerdictReturn, "") },
			verdict(expr.VerdictReturn, "")},
		{func(b *rawnl.Batch) { Extension{"other", 1}.AppendMatch(b, info) },
			&expr.Match{Name: "other", Rev: 1, Info: &info}},
		{func(b *rawnl.Batch) { Extension{"OTHER", 2}.AppendTarget(b, info) },
			&expr.Target{Name: "OTHER", Rev: 2, Info: &info}},
	} {
		requireSame(t, IPv4, tc.want, exprsOf(t, IPv4, rule("", tc.write))[0])
	}
}

// A rule with a different text, expression or set has a different hash. The same rule at a
// different place has the same hash.
func TestHashesCoverTextAndExpressions(t *testing.T) {
	t.Parallel()
	seen := map[uint64]string{}
	for _, r := range []Rule{
		rule("a", AppendCounter),
		rule("b", AppendCounter),
		rule("a", Masquerade[0].exprs),
		CTProtocol(servicemodel.TCP),
		{{text: "ct protocol { tcp }", exprs: CTProtocol()[0].exprs,
			set: &AnonymousSet{Protocols: []servicemodel.Protocol{servicemodel.UDP}}}},
		{{text: "ct protocol { tcp }", exprs: CTProtocol()[0].exprs,
			set: &AnonymousSet{Verdicts: []Verdict{{Code: VerdictDrop}}}}},
		Join(rule("a", AppendCounter), rule("b", AppendCounter)),
	} {
		require.NotContains(t, seen, r.Hash(), "%s and %s", r.Text(), seen[r.Hash()])
		seen[r.Hash()] = r.Text()
	}

	var b rawnl.Batch
	e := NewEncoder(&b, IPv6, "lb")
	sets := CTProtocol(servicemodel.TCP)
	e.AddRule("one", sets)
	e.AddRule("two", sets)
	for _, attrs := range attributes(t, &b, MsgNewRule) {
		info, err := DecodeRule(attrs)
		require.NoError(t, err)
		require.Equal(t, sets.Hash(), info.Hash())
	}
}
