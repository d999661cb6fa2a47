package nftables

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// A service port is whole if all its elements exist as wanted. Otherwise all its frontends are
// gone, and the elements that exist are left over. User data of other types mean nothing.
func TestServicePortsAreWholeOrGone(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for i, f := range nft.Families {
		ports := portsOf(f, h.table)
		require.Len(t, ports, 2)
		all := 0
		h.elements(i, func(string, string, *nft.Elem) { all++ })
		judge := func(again bool, gone, found int) *reading {
			r := h.judge(i, again)
			require.Len(t, services(r.gone), gone)
			counted := 0
			for _, n := range r.found {
				counted += n
			}
			require.Equal(t, found, counted)
			return r
		}
		require.Zero(t, left(judge(false, 0, all)))
		require.Equal(t, all, left(judge(true, 2, 0)), "contested ports are gone, and counted")
		h.elements(i, func(set, key string, e *nft.Elem) {
			as := *e
			e.UserData = append([]byte{77, 1, 0}, as.UserData...)
			judge(false, 0, all)
			e.UserData = nft.AppendComment(nil, "default/web:http cluster IP verdict=drop")
			r := judge(false, 1, all)
			require.Equal(t, e, r.elems[set][key], "what is left over is what is there")
			if *e = as; e.Data != nil {
				e.Data = append(slices.Clone(as.Data[:len(as.Data)-1]), 1)
				judge(false, 1, all)
			}
			*e = as
			delete(h.tables[i].elems[set], key)
			r = judge(false, 1, all-1)
			n := 0
			for _, l := range r.elems {
				n += len(l)
			}
			require.Positive(t, n)
			h.tables[i].elems[set][key] = e
		})
	}
}

// An answer about a range with another beginning or end is ignored.
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
}

// A service port can be asked for if the kernel can hold it.
func TestWhichUnitsCanBeExpressed(t *testing.T) {
	t.Parallel()
	table := func(edit func(fe *servicemodel.Frontend, p *servicemodel.Pool)) (servicePort,
		*servicemodel.Table) {
		fe := &servicemodel.Frontend{Key: servicemodel.FrontendKey{
			Addr: netip.MustParseAddr("10.96.0.1"), Protocol: servicemodel.TCP, Port: 80},
			Internal: servicemodel.BalanceCluster, External: servicemodel.Drop}
		id, _ := fe.Pool(fe.Internal)
		pool := &servicemodel.Pool{ID: id, Slots: []servicemodel.Slot{{Endpoint: podOne}}}
		for n := 0; n <= maxSlots; n += 1 << 15 {
			pool.Slots = append(pool.Slots, servicemodel.Slot{Endpoint: stranger, Weight: 1 << 15})
		}
		pool.Slots = pool.Slots[:3]
		edit(fe, pool)
		got := ok(servicemodel.NewTable(servicemodel.Contents{
			Frontends: []*servicemodel.Frontend{fe}, Pools: []*servicemodel.Pool{pool}}))(t)
		return servicePort{fe}, got
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
	} {
		u, got := table(tc.edit)
		require.Equal(t, tc.want, u.expressible(got), tc.name)
	}
}

// Addresses that were asked for are counted or noted as missing, even if service ports were asked
// for in the same request.
func TestAddressesAreFoundOrNot(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for i, f := range nft.Families {
		for _, set := range []string{setClusterIPs, setHairpins} {
			r := h.reading(i, h.table)
			all := slices.Collect(addressesOf(h.table, f, set))
			require.NotEmpty(t, all)
			missing := map[int]netip.Addr{4: netip.MustParseAddr("10.9.9.9"),
				16: netip.MustParseAddr("fd00::9")}[f.AddrLen]
			q, addrs := &questions{}, append([]netip.Addr{missing}, all...)
			q.addPort(r, newWriter(), portsOf(f, h.table)[0])
			for _, a := range addrs {
				q.add(r.position(set), nft.Elem{Key: appendAddrKey(nil, set, a)})
			}
			h.answer(i, r, q)
			r.note(q, false)
			require.Equal(t, map[string][]netip.Addr{set: {missing}}, r.lacks)
			require.Equal(t, len(all), r.found[r.position(set)])
		}
	}
}
