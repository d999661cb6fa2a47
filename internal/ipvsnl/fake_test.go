package ipvsnl_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/ipvsnl/ipvsfake"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rawnl/rawnltest"
)

func TestTheFakeMixesFlagsAsTheKernelDoes(t *testing.T) {
	t.Parallel()
	c, _ := fakeClient(t)
	s := Wanted(Web)
	s.Flags = FlagPersistent | FlagHashPort
	require.NoError(t, submit(t, c, func(b *Batch) { b.NewService(s) }))
	require.NoError(t, submit(t, c, func(b *Batch) {
		b.Raw(CommandSetService, func(w *rawnl.Batch) {
			m := w.Nest(CmdAttrService)
			PutService(w, Wanted(Web))
			flags := w.Begin(SvcAttrFlags) // the last one counts
			w.RawNativeU32(0)
			w.RawNativeU32(uint32(FlagPersistent))
			w.End(flags)
			w.End(m)
		})
	}))
	o, err := c.Service(t.Context(), Web)
	require.NoError(t, err)
	require.Equal(t, FlagHashPort, o.Flags)
	require.True(t, o.Hashed)
}

func TestTheFakeCanBeALesserKernel(t *testing.T) {
	t.Parallel()
	c, k := fakeClient(t)
	k.RemoveScheduler("mh")
	require.ErrorIs(t, submit(t, c, func(b *Batch) {
		b.NewService(Service{ServiceKey: Web, Scheduler: "mh"})
	}), ErrNoModule)
	k.DisableIPv6()
	require.ErrorIs(t, submit(t, c, func(b *Batch) {
		b.NewService(Wanted(DNS6))
	}), syscall.EAFNOSUPPORT)
	k.Unload()
	require.ErrorIs(t, c.SetTimeouts(t.Context(), Timeouts{}), syscall.ENOENT)
}

func TestTheFakeCanFail(t *testing.T) {
	t.Parallel()
	c, k := fakeClient(t)
	bad := DestKey("10.0.0.2:80")
	k.SetFault(func(cmd Command, k ServiceKey, d DestinationKey) syscall.Errno {
		if cmd == CommandNewDestination && k == Web && d == bad {
			return syscall.ENOMEM
		}
		return 0
	})
	add := func(b *Batch) {
		b.NewDestination(Web, Dest("10.0.0.1:80"))
		b.NewDestination(Web, Dest("10.0.0.2:80"))
	}
	require.NoError(t, submit(t, c, func(b *Batch) { b.NewService(Wanted(Web)) }))
	err := submit(t, c, add)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.EqualError(t, err,
		"new destination 10.0.0.2:80 of TCP 10.96.0.1:80: cannot allocate memory")
	k.SetFault(nil)
	err = submit(t, c, add)
	require.ErrorIs(t, err, ErrExists)
	list, err := c.Destinations(t.Context(), Web)
	require.NoError(t, err)
	require.Len(t, list, 2)
}

func TestTwoClientsSeeTheSameFake(t *testing.T) {
	t.Parallel()
	ours, k := fakeClient(t)
	theirs := dial(t, k.Socket())
	require.NoError(t, submit(t, theirs, func(b *Batch) { b.NewService(Wanted(Web)) }))
	require.ErrorIs(t, submit(t, ours, func(b *Batch) { b.NewService(Wanted(Web)) }), ErrExists)
	k.ResetLog()
	require.NoError(t, submit(t, ours, func(b *Batch) { b.DelService(Web) }))
	require.Equal(t, []string{"delete service TCP 10.96.0.1:80"}, k.Log())
}

// listed returns the keys of the objects that the fake lists, in the order in which it does.
func listedKeys[T any](t *testing.T, k *ipvsfake.Kernel, cmd Command, put func(w *rawnl.Batch),
	key func(attrs []byte) T) (keys []T) {
	t.Helper()
	c := dial(t, k.Socket())
	var b Batch
	b.Raw(cmd, put)
	require.NoError(t, c.Conn().Dump(t.Context(), b.Wire(), func(m rawnl.Message) error {
		keys = append(keys, key(m.Attrs))
		return nil
	}))
	return keys
}

func TestTheFakeListsInNoUsefulOrder(t *testing.T) {
	t.Parallel()
	c, k := fakeClient(t)
	add, _ := Many(20, 3)
	require.NoError(t, c.Submit(t.Context(), add))
	services := listedKeys(t, k, CommandGetService, func(*rawnl.Batch) {},
		func(attrs []byte) ServiceKey {
			s, err := ParseServiceReply(attrs)
			require.NoError(t, err)
			return s.ServiceKey
		})
	require.ElementsMatch(t, k.Keys(), services)
	require.NotEqual(t, k.Keys(), services)
	dests := listedKeys(t, k, CommandGetDestination,
		func(w *rawnl.Batch) { PutServiceKey(w, services[0]) },
		func(attrs []byte) DestinationKey {
			d, err := ParseDestinationReply(attrs, FamilyIPv4)
			require.NoError(t, err)
			return d.DestinationKey
		})
	require.Positive(t, dests[0].Compare(dests[1]), "the newest destination comes first")
}

func TestTheFakeAnswersOnlyRequests(t *testing.T) {
	t.Parallel()
	k := ipvsfake.New()
	refused := func(typ, flags uint16, body []byte) any {
		t.Helper()
		m := rawnltest.Message{Type: typ, Flags: flags, Seq: 7, Body: body}
		answer := k.Answer([]rawnltest.Message{m})
		if len(answer) == 0 {
			return "silence"
		}
		for errno := range syscall.Errno(200) {
			if string(rawnltest.Error(m, errno, "", 0)) == string(answer[0].([]byte)) {
				return errno
			}
		}
		return answer[0]
	}
	const (
		request    = rawnl.FlagRequest
		controller = 0x10 // GENL_ID_CTRL
	)
	command := func(cmd Command) []byte { return []byte{uint8(cmd), 1, 0, 0} }
	require.Equal(t, "silence", refused(ipvsfake.Family, request, command(CommandFlush)))
	require.Equal(t, "silence", refused(ipvsfake.Family, rawnl.FlagAck, command(CommandFlush)))
	require.Equal(t, syscall.EINVAL, refused(ipvsfake.Family, request, nil))
	require.Equal(t, syscall.ENOENT,
		refused(ipvsfake.Family+1, request, command(CommandNewService)))
	require.Equal(t, syscall.EOPNOTSUPP,
		refused(ipvsfake.Family, request|rawnl.FlagDump, command(CommandNewService)))
	require.Equal(t, syscall.EOPNOTSUPP, refused(controller, request, []byte{1, 1, 0, 0}))
	require.Equal(t, syscall.EOPNOTSUPP, refused(ipvsfake.Family, request,
		append(command(CommandGetDestination), KeyAttr(Web)...)))
}

func TestTheFakesStatisticsHaveTheKernelsBytes(t *testing.T) {
	t.Parallel()
	LittleEndian(t)
	body := ipvsfake.ServiceBody(ObservedService{Service: Wanted(Web), Stats: SomeStats})
	const wide = 4 + 10*12
	require.Equal(t, Unhex(t, `
		5c00 0a80                      // IPVS_SVC_ATTR_STATS
		0800 0100 01000000             // CONNS
		0800 0200 02000000             // INPKTS
		0800 0300 03000000             // OUTPKTS
		0c00 0400 0400000000000000     // INBYTES
		0c00 0500 0500000000000000     // OUTBYTES
		0800 0600 06000000             // CPS
		0800 0700 07000000             // INPPS
		0800 0800 08000000             // OUTPPS
		0800 0900 09000000             // INBPS
		0800 0a00 0a000000             // OUTBPS
	`), body[len(body)-wide-0x5c:len(body)-wide])
}

// FuzzFake feeds the fake kernel with requests. Whatever it takes it must be able to list.
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
		messages, _ := rawnltest.Split(request) // as far as they are whole
		for i := range messages {
			messages[i].Type = ipvsfake.Family
		}
		k.Answer(messages)
		services, err := c.Services(t.Context())
		require.NoError(t, err)
		require.Len(t, services, len(k.Keys()))
		for _, s := range services {
			_, err := c.Destinations(t.Context(), s.ServiceKey)
			require.NoError(t, err)
		}
	})
}
