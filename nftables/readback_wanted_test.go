package nftables

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/servicemodel"
)

// An element is an address only if its key has no other bytes. The key of a hairpin has the address
// twice.
func TestAddressesOfSets(t *testing.T) {
	t.Parallel()
	a, b := []byte{10, 0, 0, 1}, []byte{10, 0, 0, 2}
	for _, tc := range []struct {
		set  string
		key  []byte
		want bool
	}{
		{setClusterIPs, a, true}, {setClusterIPs, a[:3], false},
		{setClusterIPs, slices.Concat(a, a), false}, {setHairpins, slices.Concat(a, a), true},
		{setHairpins, slices.Concat(a, b), false}, {setHairpins, a, false},
		{setHairpins, slices.Concat(a, a, a), false},
	} {
		got, ok := addressIn(nft.IPv4, tc.set, nft.Elem{Key: tc.key})
		require.Equal(t, tc.want, ok, "%s %v", tc.set, tc.key)
		if ok {
			require.Equal(t, netip.AddrFrom4([4]byte(a)), got)
		}
	}
}

// A service port is contested if an element is left over that concerns it: an element of one of its
// frontends, or a frontend whose comment names the same service port. A service port that is gone
// is not contested.
func TestWhichUnitsAreDoubtful(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	key := func(addr string, port uint16) nft.Elem {
		return nft.Elem{Key: nft.AppendFrontend(nil, servicemodel.FrontendKey{
			Addr: netip.MustParseAddr(addr), Protocol: servicemodel.TCP, Port: port})}
	}
	says := func(e nft.Elem, comment string) nft.Elem {
		e.UserData = nft.AppendComment(nil, comment)
		return e
	}
	slot := func(e nft.Elem) nft.Elem {
		e.Key = nft.AppendSlot(e.Key, 9)
		return e
	}
	for _, tc := range []struct {
		name, set string
		elem      nft.Elem
		want      string
	}{
		{"a verdict", "service-drop", key("10.96.0.20", 80), "db"},
		{"a slot", "service-endpoints", slot(key("10.96.0.10", 80)), "web"},
		{"a slot of a node port", "nodeport-endpoints", slot(key("0.0.0.0", 30080)), "web"},
		{"of nobody", "service-drop", key("10.96.0.99", 80), ""},
		{"another frontend that says so", "services",
			says(key("10.96.0.99", 80), "default/db:http cluster IP"), "db"},
		{"another node port that says so", "nodeports",
			says(key("0.0.0.0", 1), "default/web:http node port"), "web"},
		{"not a frontend, whatever it says", "service-drop",
			says(key("10.96.0.99", 80), "default/db:http cluster IP"), ""},
		{"a frontend of a service that nobody wants", "services",
			says(key("10.96.0.99", 80), "default/none:http cluster IP"), ""},
		{"a frontend that says nothing", "services", key("10.96.0.99", 80), ""},
		{"a set that is not read", setSettings, key("10.96.0.10", 80), ""},
		{"a set that is not known", "service-over-99", key("10.96.0.10", 80), ""},
	} {
		requireDoubt(t, h, tc.set, tc.elem, tc.want, tc.name)
	}
	s := h.reading(0, nil)
	s.add("service-drop", key("10.96.0.20", 80))
	require.Empty(t, s.contested(), "nothing is wanted")
}

// requireDoubt requires that an element that is left over makes the service ports of a service
// contested, or none.
func requireDoubt(t *testing.T, h *held, set string, e nft.Elem, want, what string) {
	t.Helper()
	s := h.reading(0, h.table)
	s.add(set, e)
	var names []string
	for _, u := range s.contested() {
		require.Equal(t, portOf(s.f, h.table, u[0].Service), u)
		names = append(names, u[0].Service.Name.Name)
	}
	if want == "" {
		require.Empty(t, names, what)
		return
	}
	require.Equal(t, []string{want}, names, what)
	again := e.Clone()
	again.Key = append(again.Key, 0, 0, 0, 9)
	s.add(set, again)
	require.Len(t, s.contested(), 1, "it is doubted once: %s", what)
	s.gone = []*servicemodel.Frontend{portOf(s.f, h.table, servicemodel.PortName{
		Name: servicemodel.Name{Namespace: "default", Name: want}, Port: "http",
		Protocol: servicemodel.TCP})[0]}
	require.Empty(t, s.contested(), what)
}

// A reading asks for the slots of an unwanted frontend according to the sets that say its class.
func TestSlotsOfWhatIsLeftOverAreAskedFor(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	for _, k := range kinds {
		s := h.reading(0, h.table)
		addr := "10.96.0.99"
		if k == kindNodePort {
			addr = "0.0.0.0"
		}
		key := nft.AppendFrontend(nil, servicemodel.FrontendKey{
			Addr: netip.MustParseAddr(addr), Protocol: servicemodel.TCP, Port: 99})
		add := func(set string, key []byte) { s.add(set, nft.Elem{Key: key}) }
		add(k.registry, key)
		asked := func() (l []string) {
			for set, slotKey := range s.moreSlots(k, key) {
				require.Equal(t, key, slotKey[:len(key)])
				l = append(l, s.sets[set].Name+string(rune('0'+slotKey[len(key)])))
			}
			return l
		}
		require.Len(t, asked(), 4, "no set says that it has more than two slots")
		add(k.prefix+"-over-2", key)
		add(k.prefix+"-over-4", append(slices.Clone(key[:len(key)-1]), 1)) // another frontend
		add(k.prefix+"-endpoints", nft.AppendSlot(slices.Clip(key), 1))    // already known
		require.ElementsMatch(t, []string{k.prefix + "-endpoints0", k.prefix + "-endpoints2",
			k.prefix + "-endpoints3",
			k.prefix + "-external-endpoints0", k.prefix + "-external-endpoints1"}, asked())
	}
}

// The found endpoints that are not wanted as hairpins are those of other pools and of maps, each
// once.
func TestWhichEndpointsMayBeHairpinsToo(t *testing.T) {
	t.Parallel()
	h := holding(t, unitsState())
	s := h.reading(0, h.table)
	wanted := netip.MustParseAddr("10.244.1.1")
	require.True(t, nocopy.Of(h.table).HasHairpin(wanted))
	at := func(n byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 9, n}), 8080)
	}
	for n, set := range []string{"service-endpoints", "service-external-endpoints",
		"nodeport-endpoints", "nodeport-external-endpoints"} {
		s.add(set, nft.Elem{Key: []byte{1}, Data: nft.AppendEndpoint(nil, at(byte(n+2)))})
		s.add(set, nft.Elem{Key: []byte{2}, Data: nft.AppendEndpoint(nil, at(2))})
		s.add(set, nft.Elem{Key: []byte{3}, Data: nft.AppendEndpoint(nil, podOne)})
	}
	var want []netip.Addr
	for n := range byte(4) {
		want = append(want, at(n+2).Addr())
	}
	require.ElementsMatch(t, want, s.unwantedAddrs())
}
