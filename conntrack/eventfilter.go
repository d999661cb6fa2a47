package conntrack

// bpfInstruction is one instruction of classic BPF (struct sock_filter,
// include/uapi/linux/filter.h).
type bpfInstruction struct {
	code   uint16
	jt, jf uint8
	k      uint32
}

// What an event filter needs of classic BPF (include/uapi/linux/bpf_common.h,
// include/uapi/linux/filter.h).
const (
	bpfLoad       uint16 = 0x00 // BPF_LD|BPF_W|BPF_IMM
	bpfLoadX      uint16 = 0x01 // BPF_LDX|BPF_W|BPF_IMM
	bpfLoadWord   uint16 = 0x20 // BPF_LD|BPF_W|BPF_ABS
	bpfLoadByteAt uint16 = 0x50 // BPF_LD|BPF_B|BPF_IND
	bpfJumpEqual  uint16 = 0x15 // BPF_JMP|BPF_JEQ|BPF_K
	bpfReturn     uint16 = 0x06 // BPF_RET|BPF_K
	bpfCopyToX    uint16 = 0x07 // BPF_MISC|BPF_TAX

	// A load from here finds the attribute of type X from offset A on, or in the attribute at A:
	// its offset, 0 if there is none.
	bpfFindAttr uint32 = 0xfffff000 + 12 // SKF_AD_OFF + SKF_AD_NLATTR
	bpfFindNest uint32 = 0xfffff000 + 16 // SKF_AD_OFF + SKF_AD_NLATTR_NEST

	bpfAccept uint32 = 0xffffffff
)

// Sizes of what stands before a value (include/uapi/linux/netlink.h,
// include/uapi/linux/netfilter/nfnetlink.h).
const (
	eventHeaders = 16 + 4 // struct nlmsghdr, struct nfgenmsg
	attrHeader   = 4      // struct nlattr
)

// eventFilter returns a program for a socket that lets the events of some protocols pass, and what
// it cannot make sense of: that is left to whoever reads it.
func eventFilter(protocols []Protocol) []bpfInstruction {
	program := []bpfInstruction{{code: bpfLoad, k: eventHeaders}}
	acceptIf := func(k uint32) {
		program = append(program, bpfInstruction{code: bpfJumpEqual, jf: 1, k: k},
			bpfInstruction{code: bpfReturn, k: bpfAccept})
	}
	find := bpfFindAttr
	for _, attr := range []uint16{attrTupleOrig, attrTupleProto, attrProtoNum} {
		program = append(program, bpfInstruction{code: bpfLoadX, k: uint32(attr)},
			bpfInstruction{code: bpfLoadWord, k: find})
		acceptIf(0)
		find = bpfFindNest
	}
	program = append(program, bpfInstruction{code: bpfCopyToX}, bpfInstruction{code: bpfLoadByteAt,
		k: attrHeader})
	for _, p := range protocols {
		acceptIf(uint32(p))
	}
	return append(program, bpfInstruction{code: bpfReturn})
}
