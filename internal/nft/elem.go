package nft

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// Elem is one element of a set: a key and, depending on the set, more. The bytes have the layout of
// the kernel's registers: each field is padded to four bytes.
type Elem struct {
	Key      []byte
	KeyEnd   []byte // end of the range, in an interval set
	Data     []byte // in a map
	UserData []byte // contains the comment
	// Goto means that Data is the name of the chain in which a packet continues.
	Goto bool
	// Timeout is the lifetime of the element. Zero means that it does not expire.
	Timeout time.Duration
	// Expires is the remaining lifetime of an element that the kernel returned, or zero if the
	// element does not expire.
	Expires time.Duration
	// Packets and Bytes are the counters of the element, in a set that counts ([Count]).
	Packets, Bytes uint64
}

// Clone copies the bytes of an element.
func (e Elem) Clone() Elem {
	all := make([]byte, 0, len(e.Key)+len(e.KeyEnd)+len(e.Data)+len(e.UserData))
	for _, field := range []*[]byte{&e.Key, &e.KeyEnd, &e.Data, &e.UserData} {
		if *field == nil {
			continue
		}
		at := len(all)
		all = append(all, *field...)
		*field = all[at:len(all):len(all)]
	}

	return e
}

// ElemList contains encoded elements, each an NFTA_LIST_ELEM in wire form.
type ElemList struct {
	Len    int
	Size   int      // of all elements, in bytes
	blocks [][]byte // one block for each message
}

// messageRoom is the number of bytes of elements that fill a message. The element that exceeds it
// is the last one of the message. It is far below the limit of an attribute (65,535 bytes), and
// large enough that the number of messages does not matter.
const messageRoom = 32 << 10

// blockSize is the memory of each further block. A block never grows by copying, because long lists
// need the most memory when a table is written.
const blockSize = messageRoom + 1<<10

// firstBlock is the memory of the first block: most lists have one or two elements.
const firstBlock = 128

// Add appends an element.
func (l *ElemList) Add(e Elem) {
	last := len(l.blocks) - 1
	if last < 0 || len(l.blocks[last]) > messageRoom {
		size := firstBlock
		if last >= 0 {
			size = blockSize
		}
		l.blocks = append(l.blocks, make([]byte, 0, size))
		last++
	}

	b := l.blocks[last]
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b = appendData(b, elemKey, e.Key)
	if e.KeyEnd != nil {
		b = appendData(b, elemKeyEnd, e.KeyEnd)
	}
	switch {
	case e.Goto:
		b = appendGoto(b, elemData, e.Data)
	case e.Data != nil:
		b = appendData(b, elemData, e.Data)
	}

	if e.Timeout != 0 {
		b = appendAttr(b, elemTimeout, binary.BigEndian.AppendUint64(nil,
			uint64(e.Timeout.Milliseconds())))
	}

	if e.UserData != nil {
		b = appendAttr(b, elemUserData, e.UserData)
	}
	putAttrHeader(b[start:], len(b)-start, listElem|rawnl.AttrNested)
	l.blocks[last] = b
	l.Size += len(b) - start
	l.Len++
}

// Reset empties the list and keeps the memory of its first block.
func (l *ElemList) Reset() {
	if len(l.blocks) > 0 {
		l.blocks = append(l.blocks[:0], l.blocks[0][:0])
	}
	l.Len, l.Size = 0, 0
}

// Bytes returns the elements in wire form, in one piece.
func (l *ElemList) Bytes() []byte { return bytes.Join(l.blocks, nil) }

// Each calls fn for every element. Decoding cannot fail because we encoded the list.
func (l *ElemList) Each(fn func(Elem)) {
	for _, b := range l.blocks {
		_ = DecodeElems(b, func(e Elem) error {
			fn(e)
			return nil
		})
	}
}

// appendData appends attribute typ, a nest around one NFTA_DATA_VALUE.
func appendData(b []byte, typ uint16, value []byte) []byte {
	n := len(value)
	pad := (n + 3) &^ 3
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	putAttrHeader(b[len(b)-8:], 8+pad, typ|rawnl.AttrNested)
	putAttrHeader(b[len(b)-4:], 4+n, DataValue)
	b = append(b, value...)
	return append(b, zeros[:pad-n]...)
}

// appendGoto appends attribute typ, a nest around a verdict goto.
func appendGoto(b []byte, typ uint16, chain []byte) []byte {
	start, code := len(b), int32(VerdictGoto)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	b = appendAttr(b, AttrVerdictCode, binary.BigEndian.AppendUint32(nil, uint32(code)))
	b = appendAttr(b, AttrVerdictChain, append(chain[:len(chain):len(chain)], 0))
	putAttrHeader(b[start:], len(b)-start, typ|rawnl.AttrNested)
	putAttrHeader(b[start+4:], len(b)-start-4, DataVerdict|rawnl.AttrNested)
	return b
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
func decodeElem(data []byte) (Elem, error) {
	var e Elem
	it := rawnl.Attrs(data)
	for it.Next() {
		switch it.Type() {
		case elemKey:
			e.Key, _ = dataOf(&it)
		case elemKeyEnd:
			e.KeyEnd, _ = dataOf(&it)
		case elemData:
			e.Data, e.Goto = dataOf(&it)
		case elemExpiration:
			e.Expires = max(1, time.Duration(it.U64())*time.Millisecond)
		case elemUserData:
			e.UserData = it.Data()
		case elemExpr:
			x, err := decodeExpr(it.Nest())
			if err == nil && string(x.Name) == "counter" {
				e.Packets, e.Bytes, err = countedBy(x.Attrs)
			}
			if err != nil {
				return e, err
			}
		}
	}

	return e, it.Err()
}

// dataOf returns the data inside the current attribute: a value, or the chain of a verdict. It
// returns nil if there is neither.
func dataOf(it *rawnl.AttrIter) (data []byte, isChain bool) {
	in := it.Nest()
	for in.Next() {
		switch in.Type() {
		case DataValue:
			return in.Data(), false
		case DataVerdict:
			v := in.Nest()
			for v.Next() {
				if v.Type() == AttrVerdictChain {
					return CString(v.Data()), true
				}
			}
		}
	}

	return nil, false
}

// DecodeElems calls fn for every element of a list in wire form.
func DecodeElems(list []byte, fn func(Elem) error) error {
	it := rawnl.Attrs(list)
	for it.Next() {
		e, err := decodeElem(it.Data())
		if err == nil {
			err = fn(e)
		}
		if err != nil {
			return err
		}
	}

	return it.Err()
}

// Keys and data. Each append function appends the bytes of one field.

// AppendAddr appends an address.
func AppendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		v := a.As4()
		return append(b, v[:]...)
	}

	v := a.As16()
	return append(b, v[:]...)
}

// AppendPort appends a port.
func AppendPort(b []byte, port uint16) []byte { return append(b, byte(port>>8), byte(port), 0, 0) }

// AppendFrontend appends the key of a frontend: address, protocol and port, but no address for a
// node port. In the key of a range, the first and the last port have the form of an address.
func AppendFrontend(b []byte, k servicemodel.FrontendKey) []byte {
	if !k.NodePort() {
		b = AppendAddr(b, k.Addr)
	}
	b = append(b, byte(k.Protocol), 0, 0, 0)
	if k.EndPort != 0 {
		return AppendPortRange(b, k)
	}
	return AppendPort(b, k.Port)
}

// AppendPortRange appends the first and the last port of a range, in the form of an address. An
// IPv6 address also has room for the protocol.
func AppendPortRange(b []byte, k servicemodel.FrontendKey) []byte {
	if !k.Addr.Is4() {
		b = append(append(b, make([]byte, 11)...), byte(k.Protocol))
	}
	return append(b, byte(k.Port>>8), byte(k.Port), byte(k.EndPort>>8), byte(k.EndPort))
}

// AppendBlock appends the key of a block of ports at the address of a frontend: the first port,
// address and protocol, but no address for node ports.
func AppendBlock(b []byte, first uint16, k servicemodel.FrontendKey) []byte {
	b = AppendPort(b, first)
	if !k.NodePort() {
		b = AppendAddr(b, k.Addr)
	}
	return append(b, byte(k.Protocol), 0, 0, 0)
}

// AppendSlot appends the number of a slot.
func AppendSlot(b []byte, slot int) []byte {
	return binary.NativeEndian.AppendUint32(b, uint32(slot))
}

// Native32 returns a number in the byte order of the machine.
func Native32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// AppendEndpoint appends an address and a port.
func AppendEndpoint(b []byte, ep netip.AddrPort) []byte {
	return AppendPort(AppendAddr(b, ep.Addr()), ep.Port())
}

// Reader reads the fields of a key or data one after another. After the first mistake it returns
// only zero values.
type Reader struct {
	Bytes []byte
	bad   bool
}

// take returns the next n bytes.
func (r *Reader) take(n int) []byte {
	if len(r.Bytes) < n {
		r.bad = true
		return make([]byte, n)
	}

	v := r.Bytes[:n]
	r.Bytes = r.Bytes[n:]
	return v
}

// Addr reads an address of n bytes.
func (r *Reader) Addr(n int) netip.Addr {
	a, _ := netip.AddrFromSlice(r.take(n))
	return a
}

// Proto reads a protocol.
func (r *Reader) Proto() servicemodel.Protocol { return servicemodel.Protocol(r.take(4)[0]) }

// Port reads a port.
func (r *Reader) Port() uint16 { return binary.BigEndian.Uint16(r.take(4)) }

// Native reads a number in the byte order of the machine.
func (r *Reader) Native() uint32 { return binary.NativeEndian.Uint32(r.take(4)) }

// Frontend reads the key of a frontend. unspecified is the unspecified address of the family. It
// becomes the address of a node port, whose key has no address.
func (r *Reader) Frontend(unspecified netip.Addr, nodePort bool) servicemodel.FrontendKey {
	key := servicemodel.FrontendKey{Addr: unspecified}
	if !nodePort {
		key.Addr = r.Addr(unspecified.BitLen() / 8)
	}
	key.Protocol = r.Proto()
	key.Port = r.Port()
	return key
}

// Range reads the bytes from [AppendPortRange], for addresses of n bytes, and sets the ports of a
// key. It sets the protocol if the key has none, and otherwise compares it.
func (r *Reader) Range(key *servicemodel.FrontendKey, n int) {
	b := r.take(n)
	if n > 4 {
		if key.Protocol == 0 {
			key.Protocol = servicemodel.Protocol(b[11])
		}
		r.bad = r.bad || b[11] != byte(key.Protocol) || bytes.ContainsFunc(b[:11],
			func(c rune) bool { return c != 0 })
	}

	key.Port, key.EndPort = binary.BigEndian.Uint16(b[n-4:]), binary.BigEndian.Uint16(b[n-2:])
}

// RangeFrontend reads the key of a frontend at a range, for addresses of n bytes.
func (r *Reader) RangeFrontend(n int) servicemodel.FrontendKey {
	key := servicemodel.FrontendKey{Addr: r.Addr(n), Protocol: r.Proto()}
	r.Range(&key, n)
	return key
}

// RangeClients reads the key of a frontend at a range in a map of clients, for addresses of n
// bytes. The key has no separate protocol if the range contains the protocol.
func (r *Reader) RangeClients(n int) servicemodel.FrontendKey {
	if n == 4 {
		return r.RangeFrontend(n)
	}
	key := servicemodel.FrontendKey{Addr: r.Addr(n)}
	r.Range(&key, n)
	return key
}

// Block reads the bytes from [AppendBlock], for addresses of n bytes, without the port.
func (r *Reader) Block(n int) servicemodel.FrontendKey {
	r.Port()
	return servicemodel.FrontendKey{Addr: r.Addr(n), Protocol: r.Proto()}
}

// Endpoint reads an address of n bytes and a port.
func (r *Reader) Endpoint(n int) netip.AddrPort {
	a := r.Addr(n)
	return netip.AddrPortFrom(a, r.Port())
}

// Done reports whether all fields could be read and no bytes are left.
func (r *Reader) Done() bool { return !r.bad && len(r.Bytes) == 0 }

// LastAddr returns the last address of a prefix: the end of its range.
func LastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// RangePrefix returns the prefix that covers exactly the range from first to last, and false if
// there is none.
func RangePrefix(first, last netip.Addr) (netip.Prefix, bool) {
	for bits := 0; bits <= first.BitLen(); bits++ {
		p := netip.PrefixFrom(first, bits)
		if p.Masked().Addr() == first && LastAddr(p) == last {
			return p, true
		}
	}

	return netip.Prefix{}, false
}
