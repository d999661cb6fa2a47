package nft

// Field is one field of a set's key or data. In a concatenation, each field uses a multiple of four
// bytes.
type Field uint8

const (
	fieldIPv4Addr Field = iota
	fieldIPv6Addr
	// FieldProto is a protocol of IP.
	FieldProto
	// FieldPort is a port.
	FieldPort
	// FieldSlot is a number that numgen draws, in the byte order of the machine.
	FieldSlot
	// FieldMark is a number, in the byte order of the machine.
	FieldMark
	// FieldVerdict is the data of a map of verdicts: see [Elem.Goto].
	FieldVerdict
)

// fieldTypes describes the fields: the number and name of the type in nft (enum datatypes in
// include/datatype.h of nftables), the length in bytes, and an expression of the type as nft prints
// it.
var fieldTypes = [...]struct {
	typ          uint32
	len          int
	name, typeof string
}{
	fieldIPv4Addr: {7, 4, "ipv4_addr", "ip daddr"},
	fieldIPv6Addr: {8, 16, "ipv6_addr", "ip6 daddr"},
	FieldProto:    {12, 1, "inet_proto", "meta l4proto"},
	FieldPort:     {13, 2, "inet_service", "th dport"},
	FieldSlot:     {4, 4, "integer", "numgen random mod 2"},
	FieldMark:     {19, 4, "mark", "meta mark"},
	FieldVerdict:  {dataTypeVerdict, verdictLen, "verdict", ""},
}

// FrontendFields are the fields of the key of a frontend in the form of [AppendFrontend].
func (f *Family) FrontendFields(nodePort bool) []Field {
	if nodePort {
		return []Field{FieldProto, FieldPort}
	}
	return []Field{f.Addr, FieldProto, FieldPort}
}

// Set is a named set or map of a table.
type Set struct {
	Name    string
	Comment string
	Key     []Field
	Data    []Field // of a map
	Flags   uint32  // SetInterval and so on
	Size    uint32  // the maximum number of elements; 0 lets the set grow
	Typeof  bool    // the key ends with a slot, which only a typeof can declare
}

// kind is nft's word for the set: "set" or "map".
func (s *Set) kind() string {
	if s.Data != nil {
		return "map"
	}
	return "set"
}

// LeadsToChains reports whether the elements of a map name chains.
func (s *Set) LeadsToChains() bool { return len(s.Data) == 1 && s.Data[0] == FieldVerdict }

// SetSpec contains the attributes of a set that identify its kind. Other flags differ between
// kernel versions.
type SetSpec struct {
	Flags, KeyType, KeyLen, DataType, DataLen uint32
}

const specFlags = SetInterval | SetMap | SetTimeout

// Spec returns the expected attributes of the set.
func (s *Set) Spec() SetSpec {
	r := SetSpec{Flags: s.Flags & specFlags, KeyType: concatType(s.Key), KeyLen: concatLen(s.Key)}
	if s.Data != nil {
		r.DataType, r.DataLen = concatType(s.Data), concatLen(s.Data)
	}
	return r
}

// concatType packs types as nft does, six bits for each (TYPE_BITS in include/datatype.h of
// nftables).
func concatType(fs []Field) uint32 {
	var t uint32
	for _, f := range fs {
		t = t<<6 | fieldTypes[f].typ
	}
	return t
}

// concatLen is the length of a key or data. A single field is not padded.
func concatLen(fs []Field) uint32 {
	if len(fs) == 1 {
		return uint32(fieldTypes[fs[0]].len)
	}
	n := 0
	for _, f := range fs {
		n += (fieldTypes[f].len + 3) &^ 3
	}
	return uint32(n)
}

// Chain is a chain of a table. Only a base chain has a type.
type Chain struct {
	Name string
	Type string // "nat", "filter", "route"; empty if it is not a base chain
	Hook uint32 // HookPrerouting and so on
	Prio int32
	// Drops means that the policy of a base chain is drop. Our chains accept.
	Drops bool
}

var hookNames = [...]string{"prerouting", "input", "forward", "output", "postrouting"}
