package ipvsnl

import (
	"bytes"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestABatchKeepsTheFirstMistake(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		add  func(b *Batch)
		want string
	}{
		{"a new service", func(b *Batch) { b.NewService(Service{ServiceKey: web}) },
			"new service: TCP 10.96.0.1:80: scheduler: invalid: missing"},
		{"a changed service", func(b *Batch) {
			b.SetService(Service{ServiceKey: web})
		}, "set service: "},
		{"a removed service", func(b *Batch) { b.DelService(ServiceKey{}) }, "delete service: "},
		{"a destination of no service", func(b *Batch) {
			b.NewDestination(ServiceKey{}, dest("10.0.0.1:80"))
		}, "new destination: "},
		{"a destination of the other family", func(b *Batch) {
			b.SetDestination(web, dest("[2001:db8::1]:80"))
		},
			"set destination: "},
		{"a removed destination", func(b *Batch) {
			b.DelDestination(web, DestinationKey{})
		}, "delete destination: "},
		{"a removed destination of no service", func(b *Batch) {
			b.DelDestination(ServiceKey{}, destKey("10.0.0.1:80"))
		},
			"delete destination: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, f := fakeClient(t)
			var b Batch
			b.NewService(wanted(web))
			require.NoError(t, b.Err())
			tt.add(&b)
			b.NewService(Service{ServiceKey: dns6})
			require.ErrorIs(t, b.Err(), ErrInvalid)
			require.ErrorContains(t, b.Err(), tt.want)
			require.Equal(t, b.Err(), c.Submit(t.Context(), &b))
			require.Empty(t, f.Log(), "nothing was sent")
		})
	}
}

func TestAForeignServiceCanBeRemoved(t *testing.T) {
	t.Parallel()
	var b Batch
	k := web
	k.Protocol = 50
	b.DelService(k)
	require.NoError(t, b.Err())
	b.NewDestination(k, dest("10.0.0.1:80"))
	require.ErrorIs(t, b.Err(), ErrInvalid)
}

func TestABatchCanBeUsedAgain(t *testing.T) {
	t.Parallel()
	c, f := fakeClient(t)
	var b Batch
	b.NewService(Service{})
	b.Reset()
	require.NoError(t, b.Err())
	require.Zero(t, b.Len())
	b.NewService(wanted(web))
	before := bytes.Clone(b.buf)
	require.NoError(t, c.Submit(t.Context(), &b))
	require.ErrorIs(t, c.Submit(t.Context(), &b), ErrExists)
	stamp(b.buf, 0, 0)
	require.Equal(t, before, b.buf,
		"but for type and sequence number, sending leaves the bytes as they were")
	require.Len(t, f.Keys(), 1)
}

func TestTheSameCommandsHaveTheSameBytes(t *testing.T) {
	t.Parallel()
	one, _ := many(20, 5)
	two, _ := many(20, 5)
	require.Equal(t, one.buf, two.buf)
	require.Equal(t, 120, one.Len())
}

func TestAddingToABatchWithRoomAllocatesNothing(t *testing.T) {
	var b Batch
	s, d := wanted(web), dest("10.244.1.1:8080")
	fill := func() {
		b.Reset()
		b.NewService(s)
		b.SetService(s)
		b.NewDestination(web, d)
		b.SetDestination(web, d)
		b.DelDestination(web, d.DestinationKey)
		b.DelService(web)
	}
	fill()
	require.Zero(t, testing.AllocsPerRun(100, fill))
}

func TestARequestCanBeDescribedFromItsBytes(t *testing.T) {
	t.Parallel()
	var b Batch
	b.NewService(wanted(marks))
	b.DelDestination(dns6, destKey("[2001:db8::2]:53"))
	require.Equal(t, &CommandError{Index: 0, Command: CommandNewService, Service: marks,
		Errno: syscall.EPERM},
		b.failure(0, verdict{errno: syscall.EPERM}))
	require.Equal(t, &CommandError{Index: 1, Command: CommandDelDestination, Service: dns6,
		Destination: destKey("[2001:db8::2]:53"), Errno: syscall.ENOENT, Text: "because"},
		b.failure(1, verdict{errno: syscall.ENOENT, text: "because"}))
	cmd, k, d := describe([]byte("short"))
	require.Zero(t, cmd)
	require.Zero(t, k)
	require.Zero(t, d)
}

// BenchmarkEncode fills a batch with 1,000 services of 10 destinations.
func BenchmarkEncode(b *testing.B) {
	var batch Batch
	s := wanted(web)
	d := dest("10.244.1.1:8080")
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
	b.SetBytes(int64(len(batch.buf)))
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch.Len()), "ns/command")
}

// BenchmarkDecode decodes a destination as the kernel sends it.
func BenchmarkDecode(b *testing.B) {
	data := appendObservedDestination(nil, ObservedDestination{Destination: dest("10.244.1.1:8080"),
		Stats: someStats})
	b.ReportAllocs()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := decodeDestinationReply(data, FamilyIPv4); err != nil {
			b.Fatal(err)
		}
	}
}
