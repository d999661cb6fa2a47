package iptables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/bpf"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// xt_bpf runs a program of classic BPF on the packet, from its IP header on. struct xt_bpf_info_v1:
// u16 mode, u16 number of instructions, s32 descriptor, struct sock_filter program[64], and a
// pointer for the kernel.
const (
	sizeBPF     = 528
	bpfProgram  = 8
	maxBPF      = 64
	sizeBPFInst = 8 // struct sock_filter: u16 code, u8 jt, u8 jf, u32 k
)

// ratio is 2^32 divided by the golden ratio, as in the kernel's GOLDEN_RATIO_32, but prime.
const ratio = 2654435761

// hashProgram returns the program that matches the share m.prob of all clients. It hashes the
// client's address, with the port if m.port is set. Rules with other seeds match other clients.
//
// The hash is a polynomial of the words, mixed as at the end of MurmurHash3. Only the first packet
// of a connection is hashed, so the program may be slower than jhash, which does not fit into a BPF
// program. After IPv6 extension headers, the program reads other bytes as the port: the same bytes
// for all packets of a connection.
func hashProgram(f servicemodel.Family, m statMatch) []bpf.RawInstruction {
	var p []bpf.Instruction
	add := func(l ...bpf.Instruction) { p = append(p, l...) }
	source, words := uint32(12), 1 // iphdr.saddr
	if f == servicemodel.IPv6 {
		source, words = 8, 4 // ipv6hdr.saddr
	}
	switch {
	case m.port && f == servicemodel.IPv6:
		add(bpf.LoadAbsolute{Off: 40, Size: 2})
	case m.port:
		add(bpf.LoadMemShift{Off: 0}, bpf.LoadIndirect{Off: 0, Size: 2})
	default:
		add(bpf.LoadConstant{Dst: bpf.RegA})
	}

	for i := range words {
		add(bpf.ALUOpConstant{Op: bpf.ALUOpMul, Val: ratio}, bpf.TAX{},
			bpf.LoadAbsolute{Off: source + 4*uint32(i), Size: 4}, bpf.ALUOpX{Op: bpf.ALUOpAdd})
	}

	add(bpf.ALUOpConstant{Op: bpf.ALUOpXor, Val: m.seed * ratio})
	shift := func(n uint32) {
		add(bpf.TAX{}, bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: n},
			bpf.ALUOpX{Op: bpf.ALUOpXor})
	}

	shift(16)
	add(bpf.ALUOpConstant{Op: bpf.ALUOpMul, Val: 0x85ebca6b})
	shift(13)
	add(bpf.ALUOpConstant{Op: bpf.ALUOpMul, Val: 0xc2b2ae35})
	shift(16)
	add(bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: m.prob << 1, SkipTrue: 1},
		bpf.RetConstant{Val: 1}, bpf.RetConstant{})
	raw, _ := bpf.Assemble(p) // fails only for unknown operations
	return raw
}

// Chooser returns the function that chooses the slot for a new connection to a pool: by a hash of
// the client's address and, if the scheduler includes it, of its port. It returns nil if the pool
// is empty or if its scheduler does not hash clients. The returned function is safe for concurrent
// use. It ignores session affinity: remembered clients keep their endpoint.
func Chooser(p *servicemodel.Pool) func(client netip.AddrPort) (slot int) {
	if name, _, _ := p.Scheduler.Split(); name != servicemodel.SourceHash || len(p.Slots) == 0 {
		return nil
	}
	shares := slotShares(p)
	return func(client netip.AddrPort) int {
		for i := len(shares) - 1; i > 0; i-- {
			if clientHash(client, shares[i]) < shares[i].prob<<1 {
				return i
			}
		}

		return 0
	}
}

// Shares returns the share of new connections that each slot of a pool gets in the kernel, from 0
// to 1, according to the probabilities of its rules.
func Shares(p *servicemodel.Pool) []float64 {
	shares, left := make([]float64, len(p.Slots)), 1.
	matches := slotShares(p)
	for i := len(matches) - 1; i >= 0; i-- {
		m, part := matches[i], 1.
		switch m.kind {
		case statRandom, statHash:
			part = float64(m.prob) / certain
		case statNth:
			part = 1 / float64(m.every)
		}

		shares[i] = left * part
		left -= shares[i]
	}

	return shares
}

// clientHash returns the hash that hashProgram compares with the share.
func clientHash(client netip.AddrPort, m statMatch) (h uint32) {
	if m.port {
		h = uint32(client.Port())
	}
	for addr := client.Addr().AsSlice(); len(addr) > 0; addr = addr[4:] {
		h = h*ratio + binary.BigEndian.Uint32(addr)
	}
	h ^= m.seed * ratio
	h = (h ^ h>>16) * 0x85ebca6b
	h = (h ^ h>>13) * 0xc2b2ae35
	return h ^ h>>16
}

func putBPF(p []byte, f *nft.Family, r *rule) {
	program := hashProgram(f.Model, r.stat)
	native.PutUint16(p[2:], uint16(len(program)))
	for i, inst := range program {
		at := p[bpfProgram+sizeBPFInst*i:]
		native.PutUint16(at, inst.Op)
		at[2], at[3] = inst.Jt, inst.Jf
		native.PutUint32(at[4:], inst.K)
	}
}

// bpf reads a program of hashProgram. It takes the numbers from p, builds a program with them, and
// compares it with p.
func (d *decoder) bpf(p []byte) bool {
	n := int(native.Uint16(p[2:]))
	if d.r.stat.kind != statNone || d.r.recent.kind != recentNone || n < 15 || n > maxBPF {
		return false
	}

	// Counted from the end, the comparison is the third instruction, and the xor the 15th.
	k := func(fromEnd int) uint32 { return native.Uint32(p[bpfProgram+sizeBPFInst*(n-fromEnd)+4:]) }
	d.r.stat = statMatch{kind: statHash, prob: k(3) >> 1, seed: k(15) * ratioInverse,
		port: native.Uint16(p[bpfProgram:]) != 0} // without, it begins with BPF_LD | BPF_IMM
	return d.made(p, putBPF)
}

// ratioInverse is the inverse of ratio, modulo 2^32.
const ratioInverse = 244002641

// bytecode returns a program as iptables-save prints it.
func bytecode(program []bpf.RawInstruction) string {
	l := []string{strconv.Itoa(len(program))}
	for _, inst := range program {
		l = append(l, fmt.Sprintf("%d %d %d %d", inst.Op, inst.Jt, inst.Jf, inst.K))
	}
	return strings.Join(l, ",")
}
