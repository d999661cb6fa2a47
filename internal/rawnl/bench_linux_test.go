package rawnl

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const benchElements = 100_000

// deleteTable deletes the table t.
func deleteTable(b *testing.B, c *Conn) {
	var batch Batch
	batch.Message(SubsysNFTables, unix.NFT_MSG_DELTABLE, 0, familyIPv4, 0,
		Object{Verb: "delete", Kind: "table", Name: "ip t"})
	batch.Text(unix.NFTA_TABLE_NAME, "t")
	require.NoError(b, c.Commit(b.Context(), &batch, 0))
}

func BenchmarkCommitManyElements(b *testing.B) {
	c := dialNew(b)
	var batch Batch
	appendTable(&batch, 0)
	appendSet(&batch)
	appendRange(&batch, 0, benchElements)
	if batch.Size() > c.MaxBatch() {
		b.Skipf("a batch of %d bytes needs CAP_NET_ADMIN in the initial user namespace",
			batch.Size())
	}
	b.SetBytes(int64(batch.Size()))
	for b.Loop() {
		require.NoError(b, c.Commit(b.Context(), &batch, 0))
		b.StopTimer()
		deleteTable(b, c)
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchElements, "ns/element")
}

// BenchmarkCommitOneElement replaces one element of many: what a changed endpoint costs.
func BenchmarkCommitOneElement(b *testing.B) {
	c := dialNew(b)
	commitNumbers(b, c, benchElements)
	gen := generation(b, c)
	var batch Batch
	b.ReportAllocs()
	for n := uint32(0); b.Loop(); n++ {
		batch.Reset()
		appendNumbers(&batch, 0, n)
		native.PutUint16(batch.Bytes()[4:], uint16(SubsysNFTables)<<8|unix.NFT_MSG_DELSETELEM)
		appendNumbers(&batch, 0, n+benchElements)
		require.NoError(b, c.Commit(b.Context(), &batch, gen))
		gen = NextGenID(gen)
	}
}

func BenchmarkGenID(b *testing.B) {
	c := dialNew(b)
	b.ReportAllocs()
	for b.Loop() {
		generation(b, c)
	}
}

func BenchmarkDumpManyElements(b *testing.B) {
	c := dialNew(b)
	commitNumbers(b, c, benchElements)
	require.Equal(b, benchElements, len(dumpNumbers(b, c)))
	var req Batch
	requestSet(&req)
	for b.Loop() {
		parts := 0
		require.NoError(b, c.Dump(b.Context(), &req, func(Message) error { parts++; return nil }))
		b.ReportMetric(float64(parts), "parts")
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchElements, "ns/element")
}
