package ipvsnl_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/ipvsfake"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

func TestTheFakeMixesFlagsAsTheKernelDoes(t *testing.T) {
	t.Parallel()
	c, _ := fakeClient(t)
	s := Wanted(Web)
	s.Flags = FlagPersistent | FlagHashPort
	require.NoError(t, submit(t, c, newService(s)))
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.Raw(CommandSetService, func(w *rawnl.Batch) {
			m := w.Nest(CmdAttrService)
			PutService(w, Wanted(Web))
			flags := w.Begin(SvcAttrFlags) // the last flags count
			w.RawNativeU32(0)
			w.RawNativeU32(uint32(FlagPersistent))
			w.End(flags)
			w.End(m)
		})
	}))
	o := serviceOf(t, c, Web)
	require.Equal(t, FlagHashPort, o.Flags)
}

// FuzzFake feeds the fake kernel with requests. The fake must be able to list every object that it
// accepts.
func FuzzFake(f *testing.F) {
	var b Batch
	b.NewService(Wanted(Web))
	b.NewDestination(Web, Dest("10.244.1.1:8080"))
	b.SetService(SIP)
	f.Add(append([]byte(nil), b.Wire().Bytes()...))
	b.DelService(Web)
	f.Add(b.Wire().Bytes())
	f.Fuzz(func(t *testing.T, request []byte) {
		c, k := fakeClient(t)
		require.NoError(t, submit(t, c, func(b *Batch) {
			b.NewService(Wanted(Web))
			b.NewDestination(Web, Dest("10.0.0.1:80"))
		}))
		messages, _ := rawnltest.Split(request) // only the whole messages
		for i := range messages {
			messages[i].Type = ipvsfake.Family
		}
		k.Answer(messages)
		services := servicesOf(t, c)
		require.Len(t, services, len(k.Keys()))
		for _, s := range services {
			destsOf(t, c, s.ServiceKey)
		}
	})
}
