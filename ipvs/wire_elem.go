package ipvs

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// Attributes of a set element (enum nft_set_elem_attributes in include/uapi/linux/netfilter/nf_tables.h).
const (
	elemKey        = 1
	elemData       = 2
	elemTimeout    = 4
	elemExpiration = 5
	elemUserdata   = 6
	elemKeyEnd     = 10
)

const nested = nfnl.AttrNested

// elem is one element of a set: a key, and what some sets have besides. The bytes are those of the kernel's registers: each field is
// padded to four bytes.
type elem struct {
	key    []byte
	keyEnd []byte // end of the range, in an interval set
	data   []byte // in a map
	ud     []byte // user data, holding the comment
	// timeout is how long the element lives; zero for ever.
	timeout time.Duration
	expiry  uint64 // milliseconds left, in what the kernel says of an element with a timeout
}

// elemList holds encoded elements, each an NFTA_LIST_ELEM as it goes on the wire.
type elemList struct {
	buf  []byte
	n    int
	cuts []int // where a message must end so that none is too long
}

// messageRoom is how many bytes of elements go into a message. It is far below what an attribute can hold
// (65,535), and above what makes the number of messages matter.
const messageRoom = 32 << 10

// add appends an element.
func (l *elemList) add(e elem) {
	start := len(l.buf)
	if last := l.lastCut(); start-last > messageRoom {
		l.cuts = append(l.cuts, start)
	}
	b := append(l.buf, 0, 0, 0, 0)
	b = appendData(b, elemKey, e.key)
	if e.keyEnd != nil {
		b = appendData(b, elemKeyEnd, e.keyEnd)
	}
	if e.data != nil {
		b = appendData(b, elemData, e.data)
	}
	if e.timeout != 0 {
		b = appendAttr(b, elemTimeout, binary.BigEndian.AppendUint64(nil, uint64(e.timeout.Milliseconds())))
	}
	if e.ud != nil {
		b = appendAttr(b, elemUserdata, e.ud)
	}
	putAttrHeader(b[start:], len(b)-start, 1|nested) // NFTA_LIST_ELEM
	l.buf = b
	l.n++
}

func (l *elemList) lastCut() int {
	if len(l.cuts) == 0 {
		return 0
	}
	return l.cuts[len(l.cuts)-1]
}

// chunks calls fn with the elements of each message.
func (l *elemList) chunks(fn func(elems []byte)) {
	start := 0
	for _, cut := range l.cuts {
		fn(l.buf[start:cut])
		start = cut
	}
	if start < len(l.buf) {
		fn(l.buf[start:])
	}
}

// appendData appends attribute typ, a nest around one NFTA_DATA_VALUE.
func appendData(b []byte, typ uint16, value []byte) []byte {
	n := len(value)
	pad := (n + 3) &^ 3
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	putAttrHeader(b[len(b)-8:], 8+pad, typ|nested)
	putAttrHeader(b[len(b)-4:], 4+n, 1) // NFTA_DATA_VALUE
	b = append(b, value...)
	return append(b, zeros[:pad-n]...)
}

func appendAttr(b []byte, typ uint16, value []byte) []byte {
	n := len(value)
	b = append(b, 0, 0, 0, 0)
	putAttrHeader(b[len(b)-4:], 4+n, typ)
	b = append(b, value...)
	return append(b, zeros[:(4-n%4)%4]...)
}

var zeros [4]byte

func putAttrHeader(b []byte, length int, typ uint16) {
	binary.NativeEndian.PutUint16(b, uint16(length))
	binary.NativeEndian.PutUint16(b[2:], typ)
}

// decodeElem decodes the data of one NFTA_LIST_ELEM. The slices point into it.
func decodeElem(data []byte) (elem, error) {
	var e elem
	it := nfnl.Attrs(data)
	for it.Next() {
		switch it.Type() {
		case elemKey:
			e.key = dataOf(&it)
		case elemKeyEnd:
			e.keyEnd = dataOf(&it)
		case elemData:
			e.data = dataOf(&it)
		case elemUserdata:
			e.ud = it.Data()
		case elemExpiration:
			e.expiry = it.U64()
		}
	}
	return e, it.Err()
}

// dataOf returns the NFTA_DATA_VALUE inside the current attribute; nil if there is none.
func dataOf(it *nfnl.AttrIter) []byte {
	in := it.Nest()
	for in.Next() {
		if in.Type() == 1 {
			return in.Data()
		}
	}
	return nil
}

// decodeElems calls fn for every element in a list as it goes on the wire.
func decodeElems(list []byte, fn func(elem) error) error {
	it := nfnl.Attrs(list)
	for it.Next() {
		e, err := decodeElem(it.Data())
		if err != nil {
			return err
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return it.Err()
}

// Keys and data. The append functions build the bytes of one field after the other.

func appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		v := a.As4()
		return append(b, v[:]...)
	}
	v := a.As16()
	return append(b, v[:]...)
}

func appendPort(b []byte, port uint16) []byte { return append(b, byte(port>>8), byte(port), 0, 0) }

// appendFrontend appends the key of a frontend: address, protocol and port, or only the latter two for a node port.
func appendFrontend(b []byte, k servicemodel.FrontendKey) []byte {
	if !k.NodePort() {
		b = appendAddr(b, k.Addr)
	}
	return appendPort(append(b, byte(k.Protocol), 0, 0, 0), k.Port)
}

// reader takes fields off a key or data. After the first mistake it only returns zero values.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if len(r.b) < n {
		r.bad = true
		return make([]byte, n)
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) addr(f *family) netip.Addr {
	a, _ := netip.AddrFromSlice(r.take(f.addrLen))
	return a
}

func (r *reader) proto() servicemodel.Protocol { return servicemodel.Protocol(r.take(4)[0]) }
func (r *reader) port() uint16                 { return binary.BigEndian.Uint16(r.take(4)) }
func (r *reader) native() uint32               { return binary.NativeEndian.Uint32(r.take(4)) }

// frontend takes the key of a frontend of a kind.
func (r *reader) frontend(f *family, kind string) servicemodel.FrontendKey {
	key := servicemodel.FrontendKey{Addr: f.any}
	if kind == kindService {
		key.Addr = r.addr(f)
	}
	key.Protocol = r.proto()
	key.Port = r.port()
	return key
}

// done reports whether everything was there and nothing is left.
func (r *reader) done() bool { return !r.bad && len(r.b) == 0 }

// Comments. nft keeps them as TLVs in user data; what it does not know there it ignores.
const (
	udComment  = 0   // NFTNL_UDATA_SET_ELEM_COMMENT, and of a rule
	udRest     = 107 // ours: what of a comment is longer than nft takes
	udHash     = 108 // ours: a rule's hash
	maxComment = 127 // NFTNL_UDATA_COMMENT_MAXLEN without the terminating NUL
)

// appendComment appends a comment as user data. nft refuses to load a comment longer than 127 bytes, so the rest of such a one is kept where nft
// does not look: it survives as long as nobody reloads the ruleset from nft's listing.
func appendComment(b []byte, s string) []byte {
	rest := ""
	if len(s) > maxComment {
		s, rest = s[:maxComment], s[maxComment:]
	}
	b = append(b, udComment, byte(len(s)+1))
	b = append(append(b, s...), 0)
	if rest != "" {
		b = append(b, udRest, byte(len(rest)))
		b = append(b, rest...)
	}
	return b
}

// commentOf returns the comment in user data.
func commentOf(ud []byte) string {
	var s, rest string
	walkUserdata(ud, func(typ byte, v []byte) {
		switch typ {
		case udComment:
			if n := len(v); n > 0 && v[n-1] == 0 {
				v = v[:n-1]
			}
			s = string(v)
		case udRest:
			rest = string(v)
		}
	})
	return s + rest
}

func walkUserdata(ud []byte, fn func(typ byte, v []byte)) {
	for len(ud) >= 2 {
		n := int(ud[1])
		if len(ud) < 2+n {
			return
		}
		fn(ud[0], ud[2:2+n])
		ud = ud[2+n:]
	}
}
