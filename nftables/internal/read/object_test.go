package read

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// The kernel can be asked for a service port only if it can hold the service port.
func TestWhichUnitsCanBeExpressed(t *testing.T) {
	t.Parallel()
	pod, other := netip.MustParseAddrPort("10.244.1.1:8080"),
		netip.MustParseAddrPort("10.244.9.9:8080")
	table := func(edit func(fe *servicemodel.Frontend, p *servicemodel.Pool)) (object,
		*servicemodel.Table) {
		fe := &servicemodel.Frontend{Key: servicemodel.FrontendKey{
			Addr: netip.MustParseAddr("10.96.0.1"), Protocol: servicemodel.TCP, Port: 80},
			Internal: servicemodel.BalanceCluster, External: servicemodel.Drop}
		id, _ := fe.Pool(fe.Internal)
		pool := &servicemodel.Pool{ID: id, Slots: []servicemodel.Slot{{Endpoint: pod}}}
		for n := 0; n <= form.MaxSlots; n += 1 << 15 {
			pool.Slots = append(pool.Slots, servicemodel.Slot{Endpoint: other, Weight: 1 << 15})
		}
		pool.Slots = pool.Slots[:3]
		edit(fe, pool)
		got := must.OK(servicemodel.NewTable(servicemodel.Contents{
			Frontends: []*servicemodel.Frontend{fe}, Pools: []*servicemodel.Pool{pool}}))(t)
		return object{frontends: []*servicemodel.Frontend{fe}}, got
	}

	for _, tc := range []struct {
		name string
		edit func(fe *servicemodel.Frontend, p *servicemodel.Pool)
		want bool
	}{
		{"as many slots as there can be", func(*servicemodel.Frontend, *servicemodel.Pool) {},
			true},
		{"one more", func(_ *servicemodel.Frontend, p *servicemodel.Pool) {
			p.Slots[0].Weight = 1
		}, false},
		{"no pool", func(_ *servicemodel.Frontend, p *servicemodel.Pool) {
			p.ID.Service.Port = "q"
		}, false},
		{"one more, for outside clients", func(fe *servicemodel.Frontend, p *servicemodel.Pool) {
			p.Slots[0].Weight = 1
			fe.Internal, fe.External = fe.External, fe.Internal
		}, false},
		{"sources on a node port", func(fe *servicemodel.Frontend, _ *servicemodel.Pool) {
			fe.Key.Addr, fe.Sources = netip.IPv4Unspecified(), []netip.Prefix{}
		}, false},
		{"another forwarding", func(_ *servicemodel.Frontend, p *servicemodel.Pool) {
			p.Forwarding = servicemodel.ForwardDirect
		}, false},
		{"sources", func(fe *servicemodel.Frontend, _ *servicemodel.Pool) {
			fe.Sources = []netip.Prefix{}
		}, true},
		{"a range", func(fe *servicemodel.Frontend, p *servicemodel.Pool) {
			fe.Key.EndPort = 90
			for i := range p.Slots {
				p.Slots[i].Endpoint = netip.AddrPortFrom(p.Slots[i].Endpoint.Addr(), 0)
			}
		}, true},
		{"a range to one port", func(fe *servicemodel.Frontend, _ *servicemodel.Pool) {
			fe.Key.EndPort = 90
		}, true},
		{"a range to several ports", func(fe *servicemodel.Frontend, p *servicemodel.Pool) {
			fe.Key.EndPort = 90
			p.Slots = append(p.Slots, servicemodel.Slot{Weight: 1,
				Endpoint: netip.MustParseAddrPort("10.244.9.9:1")})
		}, false},
	} {
		u, got := table(tc.edit)
		require.Equal(t, tc.want, u.expressible(got), tc.name)
	}
}

// Each instance has the sets that identify its tables. Any other set may belong to
// another program.
func TestWhichTablesAreMarked(t *testing.T) {
	t.Parallel()
	for _, k := range form.Kinds {
		for _, f := range nft.Families {
			r := NewReading(f, "kernlb")
			r.Specs[k.Registry] = (&nft.Set{Name: k.Registry, Key: k.Key(f)}).Spec()
			require.Equal(t, slices.Contains(form.Kinds[:2], k), r.marked(), k.Registry)
		}
	}
}

// An answer about a range with a different beginning or end is ignored.
func TestAnAnswerIsAboutWhatWasAsked(t *testing.T) {
	t.Parallel()
	want := nft.Elem{Key: []byte{1}, KeyEnd: []byte{2}}
	for _, e := range []nft.Elem{{Key: []byte{0}, KeyEnd: []byte{2}},
		{Key: []byte{1}, KeyEnd: []byte{3}}, {Key: []byte{1}}} {
		a := question{want: want}
		a.answer(e)
		require.Equal(t, question{want: want}, a, "%v", e)
	}

	a := question{want: want}
	a.answer(want)
	require.True(t, a.found && a.same)
	require.Equal(t, want, a.elem())
	lent := nft.Elem{Key: []byte{1}, KeyEnd: []byte{2}, Data: []byte{9}, UserData: []byte{8}}
	a.answer(lent)
	require.True(t, a.found)
	require.False(t, a.same)
	lent.Data[0], lent.UserData[0] = 0, 0
	require.Equal(t, nft.Elem{Key: want.Key, KeyEnd: want.KeyEnd, Data: []byte{9},
		UserData: []byte{8}}, a.elem(), "it is kept")

	want.UserData = nft.AppendComment(nil, "default/web:http")
	a = question{want: want}
	same := want
	same.UserData = append(bytes.Clone(want.UserData), 1, 1, 0)
	a.answer(same)
	require.True(t, a.same, "only the comment counts of what programs write beside an element")
}
