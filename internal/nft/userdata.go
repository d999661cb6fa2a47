package nft

import "encoding/binary"

// The kernel stores user data for nft and never reads them. nft writes TLVs, and ignores types that
// it does not know.

// Types in the user data of elements and rules.
const (
	udComment  = 0   // NFTNL_UDATA_SET_ELEM_COMMENT, and of a rule
	udRest     = 107 // ours: the end of a comment that is too long for nft
	udHash     = 108 // ours: a rule's hash
	maxComment = 127 // NFTNL_UDATA_COMMENT_MAXLEN without the terminating NUL
)

// AppendComment appends a comment as user data. nft refuses to load a comment longer than 127
// bytes. So the rest of a longer comment has a type that nft ignores. If a listing of nft is
// loaded, the rest is lost.
func AppendComment(b []byte, s string) []byte {
	rest := ""
	if len(s) > maxComment {
		s, rest = s[:maxComment], s[maxComment:]
	}
	b = appendText(b, udComment, s)
	if rest != "" {
		b = append(b, udRest, byte(len(rest)))
		b = append(b, rest...)
	}

	return b
}

// appendText appends a string with its NUL.
func appendText(b []byte, typ byte, s string) []byte {
	return append(append(append(b, typ, byte(len(s)+1)), s...), 0)
}

// CommentOf returns the comment in user data.
func CommentOf(ud []byte) string {
	var s, rest string
	walkUserData(ud, func(typ byte, v []byte) {
		switch typ {
		case udComment:
			s = string(CString(v))
		case udRest:
			rest = string(v)
		}
	})

	return s + rest
}

// walkUserData calls fn for each TLV in user data.
func walkUserData(ud []byte, fn func(typ byte, v []byte)) {
	for len(ud) >= 2 {
		n := int(ud[1])
		if len(ud) < 2+n {
			return
		}
		fn(ud[0], ud[2:2+n])
		ud = ud[2+n:]
	}
}

// Types in the user data of sets (enum nftnl_udata_set_types in libnftnl/udata.h).
const (
	udKeyOrder   = 0 // NFTNL_UDATA_SET_KEYBYTEORDER
	udDataOrder  = 1 // NFTNL_UDATA_SET_DATABYTEORDER
	udKeyTypeof  = 3 // NFTNL_UDATA_SET_KEY_TYPEOF
	udDataTypeof = 4 // NFTNL_UDATA_SET_DATA_TYPEOF
	udSetComment = 7 // NFTNL_UDATA_SET_COMMENT
)

// appendSetUserData appends the data with which nft prints a set as it was declared.
func appendSetUserData(b []byte, s *Set) []byte {
	b = udU32(b, udKeyOrder, byteOrder(s.Key))
	if s.Data != nil {
		b = udU32(b, udDataOrder, byteOrder(s.Data))
	}
	if s.Typeof {
		b = udTLV(b, udKeyTypeof, typeofFields(s.Key))
		b = udTLV(b, udDataTypeof, typeofFields(s.Data))
	}

	if s.Comment != "" {
		b = udTLV(b, udSetComment, append([]byte(s.Comment), 0))
	}
	return b
}

// Byte orders (enum byteorder in include/datatype.h of nftables).
const (
	orderInvalid = 0 // of a concatenation
	orderHost    = 1
	orderNetwork = 2
)

func byteOrder(fs []Field) uint32 {
	switch {
	case len(fs) > 1:
		return orderInvalid
	case fs[0] == FieldMark, fs[0] == FieldSlot:
		return orderHost
	}

	return orderNetwork
}

// The kinds and parameters of expressions in a typeof (enum expr_types in include/expression.h of
// nftables, and the udata functions of each expression in src).
const (
	udTypeofKind = 0 // NFTNL_UDATA_SET_TYPEOF_EXPR
	udTypeofData = 1 // NFTNL_UDATA_SET_TYPEOF_DATA

	typeofPayload = 7  // EXPR_PAYLOAD
	typeofMeta    = 9  // EXPR_META
	typeofConcat  = 13 // EXPR_CONCAT
	typeofNumgen  = 23 // EXPR_NUMGEN
)

// Protocols, and their fields (enum proto_desc_id and the enums of headers in include/proto.h of
// nftables).
const (
	protoTH      = 11 // PROTO_DESC_TH
	protoIP      = 12 // PROTO_DESC_IP
	protoIP6     = 13 // PROTO_DESC_IP6
	fieldTHDPort = 2  // THDR_DPORT
	fieldIPDst   = 12 // IPHDR_DADDR
	fieldIP6Dst  = 9  // IP6HDR_DADDR
)

// typeofFields describes a concatenation of the expressions that load the fields.
func typeofFields(fs []Field) []byte {
	var l []byte
	for i, f := range fs {
		l = udTLV(l, byte(i), f.typeof())
	}
	return typeof(typeofConcat, l)
}

// typeof describes the expression that loads a field: "ip daddr", "numgen random mod 2".
func (f Field) typeof() []byte {
	switch f {
	case fieldIPv4Addr:
		return typeof(typeofPayload, udNumbers(protoIP, fieldIPDst))
	case fieldIPv6Addr:
		return typeof(typeofPayload, udNumbers(protoIP6, fieldIP6Dst))
	case FieldProto:
		return typeof(typeofMeta, udNumbers(MetaL4Proto))
	case FieldPort:
		return typeof(typeofPayload, udNumbers(protoTH, fieldTHDPort))
	case FieldSlot:
		return typeof(typeofNumgen, udNumbers(numgenRandom, 2, 0)) // type, modulus, offset
	}

	return nil
}

func typeof(kind uint32, data []byte) []byte {
	return udTLV(udU32(nil, udTypeofKind, kind), udTypeofData, data)
}

// udNumbers returns numbers of types 0, 1 and so on.
func udNumbers(numbers ...uint32) []byte {
	var b []byte
	for i, n := range numbers {
		b = udU32(b, byte(i), n)
	}
	return b
}

func udTLV(b []byte, typ byte, v []byte) []byte {
	return append(append(b, typ, byte(len(v))), v...)
}

func udU32(b []byte, typ byte, v uint32) []byte {
	return binary.NativeEndian.AppendUint32(append(b, typ, 4), v)
}
