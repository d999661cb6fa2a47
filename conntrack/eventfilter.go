package conntrack

import "golang.org/x/net/bpf"

// Sizes of the headers before a value (include/uapi/linux/netlink.h,
// include/uapi/linux/netfilter/nfnetlink.h).
const (
	eventHeaders = 16 + 4 // struct nlmsghdr, struct nfgenmsg
	attrHeader   = 4      // struct nlattr
)

// eventFilter returns a program for a socket. It passes the events of some protocols, and all
// messages that it cannot decode: the reader decides about those. Without protocols it returns no
// program, and all events pass.
func eventFilter(protocols []Protocol) ([]bpf.RawInstruction, error) {
	if len(protocols) == 0 {
		return nil, nil
	}
	program := []bpf.Instruction{bpf.LoadConstant{Dst: bpf.RegA, Val: eventHeaders}}
	acceptIf := func(value uint32) {
		program = append(program,
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: value, SkipFalse: 1},
			bpf.RetConstant{Val: 0xffffffff})
	}
	// Each load finds the attribute of type X, from offset A on or in the attribute at A. It
	// returns the attribute's offset, or 0 if there is none.
	find := bpf.ExtNetlinkAttr
	for _, attr := range []uint16{attrTupleOrig, attrTupleProto, attrProtoNum} {
		program = append(program, bpf.LoadConstant{Dst: bpf.RegX, Val: uint32(attr)},
			bpf.LoadExtension{Num: find})
		acceptIf(0)
		find = bpf.ExtNetlinkAttrNested
	}
	program = append(program, bpf.TAX{}, bpf.LoadIndirect{Off: attrHeader, Size: 1})
	for _, p := range protocols {
		acceptIf(uint32(p))
	}
	return bpf.Assemble(append(program, bpf.RetConstant{}))
}
