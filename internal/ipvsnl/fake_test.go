package ipvsnl

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheFakeMixesFlagsAsTheKernelDoes(t *testing.T) {
	t.Parallel()
	c, _ := fakeClient(t)
	s := wanted(web)
	s.Flags = FlagPersistent | FlagHashPort
	require.NoError(t, submit(t, c, func(b *Batch) { b.NewService(s) }))
	attributes := appendService(nil, wanted(web))
	at := len(attributes) - 16 - 4 // the mask, before timeout and netmask
	require.Equal(t, allFlags, native.Uint32(attributes[at:]))
	native.PutUint32(attributes[at:], uint32(FlagPersistent))
	require.NoError(t, submit(t, c, func(b *Batch) { rawAttrs(b, CommandSetService, attributes) }))
	o, err := c.Service(t.Context(), web)
	require.NoError(t, err)
	require.Equal(t, FlagHashPort, o.Flags)
	require.True(t, o.Hashed)
}

func TestTheFakeCanBeALesserKernel(t *testing.T) {
	t.Parallel()
	c, f := fakeClient(t)
	f.RemoveScheduler("mh")
	require.ErrorIs(t, submit(t, c, func(b *Batch) {
		b.NewService(Service{ServiceKey: web, Scheduler: "mh"})
	}), ErrNoModule)
	f.DisableIPv6()
	require.ErrorIs(t, submit(t, c, func(b *Batch) {
		b.NewService(wanted(dns6))
	}), syscall.EAFNOSUPPORT)
	f.Unload()
	require.ErrorIs(t, c.Flush(t.Context()), syscall.ENOENT)
}

func TestTheFakeCanFail(t *testing.T) {
	t.Parallel()
	c, f := fakeClient(t)
	bad := destKey("10.0.0.2:80")
	f.SetFault(func(cmd Command, k ServiceKey, d DestinationKey) syscall.Errno {
		if cmd == CommandNewDestination && k == web && d == bad {
			return syscall.ENOMEM
		}
		return 0
	})
	add := func(b *Batch) {
		b.NewDestination(web, dest("10.0.0.1:80"))
		b.NewDestination(web, dest("10.0.0.2:80"))
	}
	require.NoError(t, submit(t, c, func(b *Batch) { b.NewService(wanted(web)) }))
	err := submit(t, c, add)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.EqualError(t, err,
		"new destination 10.0.0.2:80 of TCP 10.96.0.1:80: cannot allocate memory")
	f.SetFault(nil)
	err = submit(t, c, add)
	require.ErrorIs(t, err, ErrExists)
	list, err := c.Destinations(t.Context(), web)
	require.NoError(t, err)
	require.Len(t, list, 2)
}

func TestTwoClientsSeeTheSameFake(t *testing.T) {
	t.Parallel()
	ours, f := fakeClient(t)
	theirs, err := f.Dial(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, submit(t, theirs, func(b *Batch) { b.NewService(wanted(web)) }))
	require.ErrorIs(t, submit(t, ours, func(b *Batch) { b.NewService(wanted(web)) }), ErrExists)
	f.ResetLog()
	require.NoError(t, ours.Flush(t.Context()))
	require.Equal(t, []string{"flush"}, f.Log())
}

func TestTheFakeListsInNoUsefulOrder(t *testing.T) {
	t.Parallel()
	f := NewFake()
	c, err := f.Dial(t.Context(), nil)
	require.NoError(t, err)
	add, _ := many(20, 3)
	require.NoError(t, c.Submit(t.Context(), add))
	var keys []ServiceKey
	for _, s := range f.inHashOrder() {
		keys = append(keys, s.ServiceKey)
	}
	require.ElementsMatch(t, f.Keys(), keys)
	require.NotEqual(t, f.Keys(), keys)
	require.Greater(t, f.services[keys[0]].destinations[0].Addr.Compare(
		f.services[keys[0]].destinations[1].Addr), 0,
		"the newest destination comes first")
}

func TestTheFakeAnswersOnlyRequests(t *testing.T) {
	t.Parallel()
	f := NewFake()
	answer := func(m message) verdict {
		replies, _ := f.handle(m)
		if len(replies) == 0 {
			return verdict{text: "silence"}
		}
		r, _, err := nextMessage(replies[0])
		require.NoError(t, err)
		v, err := r.verdict()
		require.NoError(t, err)
		return v
	}
	request := message{typ: fakeFamily, flags: flagRequest, body: genBody(uint8(CommandFlush))}
	require.Equal(t, "silence", answer(request).text)
	request.flags = flagAck
	require.Equal(t, "silence", answer(request).text)
	require.Equal(t, syscall.EINVAL, answer(message{typ: fakeFamily, flags: flagRequest}).errno)
	require.Equal(t, syscall.ENOENT,
		answer(message{typ: fakeFamily + 1, flags: flagRequest, body: genBody(1)}).errno)
	require.Equal(t, syscall.EOPNOTSUPP,
		answer(message{typ: fakeFamily, flags: dumpFlags, body: genBody(1)}).errno)
	require.Equal(t, syscall.EOPNOTSUPP,
		answer(message{typ: typeControl, flags: flagRequest, body: genBody(1)}).errno)
	require.Equal(t, syscall.EOPNOTSUPP,
		answer(message{typ: fakeFamily, flags: flagRequest, body: appendServiceKey(genBody(8),
			web)}).errno)
}

// FuzzFake feeds the fake kernel with requests. Whatever it takes it must be able to list.
func FuzzFake(f *testing.F) {
	var b Batch
	b.NewService(wanted(web))
	b.NewDestination(web, dest("10.244.1.1:8080"))
	b.SetService(sip)
	b.DelService(web)
	for i := range b.Len() {
		f.Add(b.buf[b.at[i]:b.endOf(i)])
	}
	f.Add(b.buf)
	f.Fuzz(func(t *testing.T, request []byte) {
		fake := NewFake()
		c, err := fake.Dial(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, submit(t, c, func(b *Batch) {
			b.NewService(wanted(web))
			b.NewDestination(web, dest("10.0.0.1:80"))
		}))
		if len(request) >= headerLen {
			native.PutUint16(request[4:], fakeFamily)
		}
		fake.answer(request)
		services, err := c.Services(t.Context())
		require.NoError(t, err)
		require.Len(t, services, len(fake.Keys()))
		for _, s := range services {
			_, err := c.Destinations(t.Context(), s.ServiceKey)
			require.NoError(t, err)
		}
	})
}
