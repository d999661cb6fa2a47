package ipvsnl_test

import (
	"bytes"
	"encoding/binary"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/test/ipvsfake"
)

func TestABatchCanBeUsedAgain(t *testing.T) {
	t.Parallel()
	c, k := fakeClient(t)
	var b Batch
	b.NewService(Service{})
	b.Reset()
	require.Zero(t, b.Len())
	b.NewService(Wanted(Web))
	before := bytes.Clone(b.Wire().Bytes())
	require.NoError(t, c.Submit(t.Context(), &b))
	require.ErrorIs(t, c.Submit(t.Context(), &b), ErrExists)
	after := b.Wire().Bytes()
	clear(after[4:6])  // nlmsg_type
	clear(after[8:12]) // nlmsg_seq
	require.Equal(t, before, after,
		"but for type and sequence number, sending leaves the bytes as they were")
	require.Len(t, k.Keys(), 1)
}

func TestAMessageHasBothHeaders(t *testing.T) {
	t.Parallel()
	LittleEndian(t)
	k := ipvsfake.New()
	sock := k.Socket()
	c := dial(t, sock)
	require.ErrorIs(t, submit(t, c, func(b *Batch) { b.DelService(Marks) }), ErrNoService)
	sent := sock.Sent[len(sock.Sent)-1]
	binary.NativeEndian.PutUint32(sent[8:], 0x01020304)
	require.Equal(t, Unhex(t, `
		28000000 1b00 0500 04030201 00000000 // nlmsghdr: length, type, flags, sequence number, port
		03 01 0000                           // genlmsghdr: command, version, reserved
		1400 0180 0600 0100 0200 0000 0800 0500 07000000
	`), sent)
}

func TestAddingToABatchWithRoomAllocatesNothing(t *testing.T) {
	var b Batch
	s, d := Wanted(Web), Dest("10.244.1.1:8080")
	fill := func() {
		b.Reset()
		b.NewService(s)
		b.SetService(s)
		b.NewDestination(Web, d)
		b.SetDestination(Web, d)
		b.DelDestination(Web, d.DestinationKey)
		b.DelService(Web)
	}
	fill()
	require.Zero(t, testing.AllocsPerRun(100, fill))
}

func TestARequestCanBeDescribedFromItsBytes(t *testing.T) {
	t.Parallel()
	var b Batch
	b.DelDestination(DNS6, DestKey("[2001:db8::2]:53"))
	request := b.Wire().Bytes()
	require.Equal(t, "[2001:db8::2]:53 of UDP [2001:db8::1]:53",
		CommandDelDestination.DescribePart(request, 0))
	b.Reset()
	b.NewService(Wanted(Marks))
	require.Equal(t, "FWM 7 IPv4", CommandNewService.DescribePart(b.Wire().Bytes(), 0))
	require.Empty(t, CommandNewService.DescribePart([]byte("short"), 0))
	require.Empty(t, CommandNewService.DescribePart(append(request, 1), 0))
	require.NoError(t, CommandGetConfig.Explain(syscall.ENOENT), "that is just an errno")
}

// BenchmarkEncode fills a batch with 1,000 services of 10 destinations.
func BenchmarkEncode(b *testing.B) {
	var batch Batch
	s := Wanted(Web)
	d := Dest("10.244.1.1:8080")
	b.ReportAllocs()
	for b.Loop() {
		batch.Reset()
		for range 1000 {
			batch.NewService(s)
			for range 10 {
				batch.NewDestination(s.ServiceKey, d)
			}
		}
	}
	b.SetBytes(int64(len(batch.Wire().Bytes())))
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch.Len()), "ns/command")
}

// BenchmarkDecode decodes a destination as the kernel sends it.
func BenchmarkDecode(b *testing.B) {
	data := ipvsfake.DestinationBody(ObservedDestination{Destination: Dest("10.244.1.1:8080"),
		Stats: SomeStats})[4:]
	b.ReportAllocs()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := ParseDestinationReply(data, FamilyIPv4); err != nil {
			b.Fatal(err)
		}
	}
}
