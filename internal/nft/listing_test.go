package nft

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// listed encodes a rule, and returns its listing.
func listed(t testing.TB, f *Family, r Rule) string {
	t.Helper()
	var b rawnl.Batch
	NewEncoder(&b, f, "lb").rule("chain", r)
	var text string
	require.NoError(t, rawnl.Messages(b.Bytes(), func(m rawnl.Message) error {
		if m.Type != MsgNewRule {
			return nil
		}
		info, err := DecodeRule(m.Attrs)
		text = ListRule(f.NFProto, info.Exprs)
		return err
	}))

	return text
}

// Common expressions are listed as nft writes them.
func TestRulesAreListed(t *testing.T) {
	t.Parallel()
	prefix := netip.MustParsePrefix
	for _, c := range []struct {
		f    *Family
		rule Rule
		want string // empty: the text of the rule itself
	}{
		{IPv4, Join(CTStateNew, IPv4.Frontend(false).In("services"), Goto("services")), ""},
		{IPv6, Join(IPv6.Frontend(true).NotIn("nodeports"), Drop), ""},
		{IPv4, IPv4.DaddrWithin(prefix("10.0.0.0/8")), "ip daddr 10.0.0.0/8"},
		{IPv4, IPv4.SaddrNotWithin(prefix("10.96.0.0/12")), ""},
		{IPv6, IPv6.DaddrNotWithin(prefix("fd00::/9")), ""},
		{IPv4, IIFNameNot("veth*"), ""},
		{IPv4, Join(IIFName.IsName("eth0"), IPv4.Saddr.IsAddr(netip.MustParseAddr("10.0.0.1")),
			L4Proto.IsProtocol(servicemodel.UDP), SPort.IsPort(53), DPort.IsPort(5353)),
			`iifname "eth0" ip saddr 10.0.0.1 udp sport 53 udp dport 5353`},
		{IPv4, MarkIs(0x4000, 0x4000), "meta mark & 0x00004000 == 0x00004000"},
		{IPv4, MarkOr(0x4000), "meta mark set meta mark | 0x00004000"},
		{IPv4, IPv4.DNAT(IPv4.Frontend(false).With(NumgenRandom(3)).Map("endpoints")),
			"dnat to ip daddr . meta l4proto . th dport . numgen mod 3 map @endpoints"},
		{IPv4, Join(FIBDaddrLocal, IPv4.Reject()), "fib daddr type local reject"},
		{IPv4, Join(L4ProtoTCP, ResetTCP), ""},
		{IPv4, Join(CTStatusDNAT, Counter, Masquerade), "ct status dnat counter masquerade"},
		{IPv4, Join(TCPBegins, LimitPerSecond(5), TraceOn),
			"@th,104,8 & 0x17 == 0x02 limit rate 5/second meta nftrace set 1"},
		{IPv4, Join(CTOriginalSPort.IsPort(7), IPv4.CTDaddr.IsAddr(IPv4.Any)),
			"ct original proto-src 7 ct original ip daddr 0.0.0.0"},
	} {
		want := c.want
		if want == "" {
			want = c.rule.Text()
		}
		require.Equal(t, want, listed(t, c.f, c.rule))
	}
}

// Listing arbitrary bytes does not fail.
func FuzzListRule(f *testing.F) {
	var b rawnl.Batch
	NewEncoder(&b, IPv4, "lb").rule("chain", Join(CTStateNew, IPv4.Frontend(false).In("services"),
		MarkOr(1), IPv4.DaddrWithin(netip.MustParsePrefix("10.0.0.0/12")), Goto("services")))
	require.NoError(f, rawnl.Messages(b.Bytes(), func(m rawnl.Message) error {
		info, err := DecodeRule(m.Attrs)
		f.Add(uint8(2), info.Exprs)
		return err
	}))

	f.Fuzz(func(_ *testing.T, family uint8, exprs []byte) {
		ListRule(family, exprs)
		(&RuleInfo{Exprs: exprs}).Effect()
	})
}
