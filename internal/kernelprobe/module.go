package kernelprobe

import (
	"bytes"
	"encoding/binary"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// Messages and attributes of nf_tables (include/uapi/linux/netfilter/nf_tables.h,
// nf_tables_compat.h).
const (
	msgNewChain = 3
	msgNewRule  = 6

	attrChainTable = 1 // NFTA_CHAIN_TABLE
	attrChainType  = 7 // NFTA_CHAIN_TYPE
	attrRuleExprs  = 4 // NFTA_RULE_EXPRESSIONS
	attrExprName   = 1 // NFTA_EXPR_NAME
	attrExprData   = 2 // NFTA_EXPR_DATA
	attrExtName    = 1 // NFTA_MATCH_NAME, NFTA_TARGET_NAME
)

// message returns message i of a batch, headers included; nil if it has no such message.
func message(b *rawnl.Batch, i int) []byte {
	p := b.Bytes()
	for len(p) >= 4 {
		n := int(binary.NativeEndian.Uint32(p))
		if n < 4 || n > len(p) {
			return nil
		}
		if i == 0 {
			return p[:n]
		}
		i, p = i-1, p[n:]
	}
	return nil
}

// module names the module that the kernel did not find when it refused a message with ENOENT at
// offset. It returns "" if the kernel looked for something else, such as a chain that it had
// refused before. The kernel requests modules by aliases such as "nft-chain-2-nat",
// "nft-expr-2-fib" or "ipt_DNAT". The returned names are the names of their files.
func module(msg []byte, offset int) string {
	const typeAt, familyAt, header = 4, 16, 20
	if len(msg) < header {
		return ""
	}
	ip := "ipv4"
	if msg[familyAt] == 10 { // NFPROTO_IPV6
		ip = "ipv6"
	}
	switch byte(binary.NativeEndian.Uint16(msg[typeAt:])) {
	case msgNewChain:
		path := rawnl.AttrPath(msg, offset)
		if len(path) > 0 && path[0].Type == attrChainTable {
			return "" // another program has deleted the table
		}
		if t := text(msg[header:], attrChainType); t != "" {
			return "nft_chain_" + t
		}
	case msgNewRule:
		path := rawnl.AttrPath(msg, offset)
		if len(path) == 0 || path[0].Type != attrRuleExprs {
			return ""
		}
		expr := path[min(1, len(path)-1)].Data
		return expression(text(expr, attrExprName), text(find(expr, attrExprData), attrExtName), ip)
	}
	return ""
}

// expression names the module of an expression. ext is the match or target of x_tables in it, if
// any.
func expression(name, ext, ip string) string {
	switch name {
	// These are part of nf_tables. They fail if the set, chain or object that they name is missing.
	case "", "immediate", "lookup", "dynset", "objref":
		return ""
	case "match", "target":
		if ext == "" {
			return "nft_compat"
		}
		return "xt_" + ext
	case "fib", "reject":
		return "nft_" + name + "_" + ip
	}
	return "nft_" + name
}

// find returns the data of the first attribute of a type.
func find(attrs []byte, typ uint16) []byte {
	it := rawnl.Attrs(attrs)
	for it.Next() {
		if it.Type() == typ {
			return it.Data()
		}
	}
	return nil
}

func text(attrs []byte, typ uint16) string {
	return string(bytes.TrimRight(find(attrs, typ), "\x00"))
}
