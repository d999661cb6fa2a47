package nft

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

var (
	plainSet = &Set{Name: "services", Comment: "every frontend", Key: []Field{IPv4.Addr, FieldProto,
		FieldPort}}
	slotMap = &Set{Name: "endpoints", Key: []Field{IPv6.Addr, FieldPort, FieldSlot},
		Data: []Field{IPv6.Addr, FieldPort}, Flags: SetMap, Typeof: true}
	ranges = &Set{Name: "sources", Key: []Field{IPv4.Addr, FieldPort, IPv4.Addr},
		Flags: SetInterval | SetConcat, Size: 64}
	clients = &Set{Name: "clients", Key: []Field{IPv4.Addr}, Data: []Field{FieldMark},
		Flags: SetMap | SetTimeout | SetEval, Size: 8}
	base   = &Chain{Name: "nat-output", Type: "nat", Hook: HookOutput, Prio: -100}
	sample = Join(Rule{}, CTProtocol(servicemodel.TCP, servicemodel.UDP, servicemodel.SCTP),
		Goto("services"))
)

// everything calls each method of a writer at least once.
func everything(w Writer) {
	w.DeleteTable()
	w.AddTable()
	for _, s := range []*Set{plainSet, slotMap, ranges, clients} {
		w.AddSet(s)
	}
	var l ElemList
	key := []byte{10, 96, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0}
	l.Add(Elem{Key: key, UserData: AppendComment(nil, "default/web")})
	w.Elements(Delete, plainSet, &l)
	w.Elements(Add, plainSet, &l)
	var r ElemList
	r.Add(Elem{Key: []byte{10, 0, 0, 1, 0, 80, 0, 0, 192, 0, 2, 0},
		KeyEnd: []byte{10, 0, 0, 1, 0, 80, 0, 0, 192, 0, 2, 255}})
	w.Elements(Add, ranges, &r)
	var m ElemList
	m.Add(Elem{Key: []byte{192, 0, 2, 1}, Data: Native32(0x4000)})
	w.Elements(Add, clients, &m)
	var p Program
	p.Chain("services")
	p.NAT(base.Name, base.Hook, base.Prio).Add(sample)
	p.WriteChains(w)
	w.FlushChain("old")
	p.WriteRules(w)
	w.DeleteChain("old")
	w.FlushSet(clients)
	w.DeleteSet(clients)
}

//revive:disable:line-length-limit

func TestTextsAreWhatNftReads(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	everything(NewText(&b, IPv4, "lb"))
	require.Equal(t, `delete table ip lb
add table ip lb
add set ip lb services { type ipv4_addr . inet_proto . inet_service; comment "every frontend"; }
add map ip lb endpoints { typeof ip6 daddr . th dport . numgen random mod 2 : ip6 daddr . th dport; }
add set ip lb sources { type ipv4_addr . inet_service . ipv4_addr; flags interval; size 64; }
add map ip lb clients { type ipv4_addr : mark; flags dynamic,timeout; size 8; }
delete element ip lb services { 10.96.0.1 . tcp . 80 comment "default/web" }
add element ip lb services { 10.96.0.1 . tcp . 80 comment "default/web" }
add element ip lb sources { 10.0.0.1 . 80 . 192.0.2.0-192.0.2.255 }
add element ip lb clients { 192.0.2.1 : 0x00004000 }
add chain ip lb services
add chain ip lb nat-output { type nat hook output priority -100; policy accept; }
flush chain ip lb old
add rule ip lb nat-output ct protocol { tcp, udp, sctp } goto services
delete chain ip lb old
flush map ip lb clients
delete map ip lb clients
`, b.String())
}

//revive:enable:line-length-limit

// add set ip lb services { type ipv4_addr . inet_proto . inet_service; comment "every frontend"; },
// on a little-endian machine, without the length of the message.
// NFT_MSG_NEWSET, NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL
const setBytes = "090a0106" + "00000000" + "00000000" + "02000000" +
	"07000100" + "6c620000" + "0d000200" + "73657276" + "69636573" + "00000000" + // lb, services
	// flags, type, length, number
	"08000300" + "00000000" + "08000400" + "0000730d" + "08000500" + "0000000c" + "08000a00" +
	"00000001" +
	// byte order, comment
	"1b000d00" + "000400000000" + "070f" + "6576657279" + "20" + "66726f6e74656e64" + "00" + "00"

func TestSetBytes(t *testing.T) {
	t.Parallel()
	if Native32(1)[0] != 1 {
		t.Skip("the bytes are those of a little-endian machine")
	}
	var b rawnl.Batch
	NewEncoder(&b, IPv4, "lb").AddSet(plainSet)
	require.NoError(t, b.Err())
	require.Equal(t, setBytes, hex.EncodeToString(b.Bytes()[4:]))
}

// attributes returns the attributes of the messages of a type in a batch.
func attributes(t *testing.T, b *rawnl.Batch, typ uint8) (l [][]byte) {
	t.Helper()
	require.NoError(t, b.Err())
	for rest := b.Bytes(); len(rest) > 0; {
		n := int(binary.NativeEndian.Uint32(rest))
		if rest[4] == typ {
			l = append(l, rest[20:n])
		}
		rest = rest[(n+3)&^3:]
	}

	return l
}

func TestWhatIsEncodedDecodes(t *testing.T) {
	t.Parallel()
	var b rawnl.Batch
	everything(NewEncoder(&b, IPv4, "lb"))

	sets := attributes(t, &b, MsgNewSet)
	for i, s := range []*Set{plainSet, slotMap, ranges, clients} {
		got, err := DecodeSet(sets[i])
		require.NoError(t, err)
		require.Equal(t, SetInfo{Name: s.Name, Spec: s.Spec(), Size: s.Size, Count: -1}, got)
	}

	require.Len(t, sets, 5, "the last is anonymous")

	elems := attributes(t, &b, MsgNewSetElem)
	require.NoError(t, DecodeElements(elems[0], func(e Elem) error {
		require.Equal(t, `10.96.0.1 . tcp . 80 comment "default/web"`, plainSet.ElemText(e))
		return nil
	}))

	protocols := 0
	require.NoError(t, DecodeElements(elems[len(elems)-1], func(e Elem) error {
		protocols++
		return nil
	}))

	require.Equal(t, 3, protocols)

	chains := attributes(t, &b, MsgNewChain)
	for i, want := range []Chain{{Name: "services"}, *base} {
		got, err := DecodeChain(chains[i])
		require.NoError(t, err)
		require.Equal(t, ChainInfo{Chain: want, Table: "lb"}, got)
	}

	r, err := DecodeRule(attributes(t, &b, MsgNewRule)[0])
	require.NoError(t, err)
	require.Equal(t, []any{"lb", "nat-output", sample.Hash()},
		[]any{string(r.Table), string(r.Chain), r.Hash()})
}

func TestAddressesBelongToFamilies(t *testing.T) {
	t.Parallel()
	for i, f := range Families {
		require.Equal(t, i, FamilyIndex(f.Any))
		require.Equal(t, f.AddrLen*8, f.Any.BitLen())
		require.True(t, f.Loopback.Addr().IsLoopback())
		last := LastAddr(f.Loopback)
		p, ok := RangePrefix(f.Loopback.Addr(), last)
		require.True(t, ok)
		require.Equal(t, f.Loopback, p)
		_, ok = RangePrefix(f.Loopback.Addr(), last.Next())
		require.False(t, ok, "no prefix ends there")
	}
}

func FuzzDecodeObjects(f *testing.F) {
	var b rawnl.Batch
	everything(NewEncoder(&b, IPv4, "lb"))
	for rest := b.Bytes(); len(rest) > 0; {
		n := int(binary.NativeEndian.Uint32(rest))
		f.Add(rest[20:n])
		rest = rest[(n+3)&^3:]
	}

	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = DecodeSet(data)
		_, _ = DecodeChain(data)
		if r, err := DecodeRule(data); err == nil {
			_ = r.Hash()
			_, _ = r.Counted()
		}

		_ = DecodeElements(data, func(e Elem) error {
			require.NotEmpty(t, slotMap.ElemText(e))
			return nil
		})
	})
}
