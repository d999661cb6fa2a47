package conntrack_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/internal/rawnl"
	. "github.com/kernlb/kernlb/internal/test/cttest"
)

// A flow that was written can be read, except for fields that only the kernel knows.
func TestCreateRoundTrip(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 3))
	for range 2000 {
		f := RandomFlow(r)
		f.Timeout = time.Duration(1+r.IntN(600)) * time.Second
		f.Original.Zone, f.Reply.Zone = Pick(r, uint16(0), 7), Pick(r, uint16(0), 7)
		f.Status &= StatusSeenReply | StatusAssured | StatusFixedTimeout
		if f.Protocol == TCP {
			f.TCP = Pick(r, 1, TCPEstablished, TCPClose)
		}
		var b, again rawnl.Batch
		AppendCreate(&b, &f)
		AppendCreate(&again, &f)
		require.NoError(t, b.Err())
		require.Equal(t, b.Bytes(), again.Bytes(), "the same flow gives the same bytes")

		var got Flow
		require.NoError(t, ParseFlow(b.Bytes()[20:], &got, WantAll), "seed %d", seed)
		want := f

		// the request asks for the translation and does not contain its result
		want.Reply.Src, want.Reply.Dst = f.Original.Dst, f.Original.Src
		if f.Status != 0 {
			want.Status |= StatusConfirmed
		}
		require.Equal(t, want, got, "seed %d", seed)
	}
}
