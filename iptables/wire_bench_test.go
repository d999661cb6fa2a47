package iptables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// BenchmarkEncodeRules encodes one rule of each kind, like a full sync.
func BenchmarkEncodeRules(b *testing.B) {
	var batch rawnl.Batch
	e := newEncoder(&batch)
	id := nat4.chain("KUBE-SERVICES")
	rules := sampleRules(nft.IPv4)
	b.ReportAllocs()
	for b.Loop() {
		batch.Reset()
		for i := range rules {
			e.rule(id, nft.Last, 0, &rules[i])
		}
	}
	require.NoError(b, batch.Err())
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(rules)), "ns/rule")
}

// BenchmarkDecodeRules decodes one rule of each kind.
func BenchmarkDecodeRules(b *testing.B) {
	var batch rawnl.Batch
	e := newEncoder(&batch)
	id := nat4.chain("KUBE-SERVICES")
	var messages [][]byte
	for _, r := range sampleRules(nft.IPv4) {
		batch.Reset()
		e.rule(id, nft.Last, 0, &r)
		messages = append(messages, append([]byte{}, batch.Bytes()[20:]...))
	}
	d := newDecoder(nft.IPv4)
	b.ReportAllocs()
	for b.Loop() {
		for _, m := range messages {
			ok(d.decodeRuleMessage(m))(b)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(messages)), "ns/rule")
}
