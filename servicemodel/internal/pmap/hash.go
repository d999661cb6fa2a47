package pmap

import (
	"encoding/binary"
	"math/bits"
)

// Odd numbers with well spread bits, from the fractional parts of the golden ratio and of the
// square roots of 2 and 3.
const (
	mulA = 0x9e3779b97f4a7c15
	mulB = 0x6a09e667f3bcc909
	mulC = 0xbb67ae8584caa73b
)

// Mix returns a hash of x on top of the hash h, which is zero at the start. It is the same on every
// machine and in every process.
func Mix(h, x uint64) uint64 {
	hi, lo := bits.Mul64(h^x^mulA, mulB^bits.RotateLeft64(x, 32))
	hi, lo = bits.Mul64(hi^lo^mulC, mulA)
	return hi ^ lo
}

// MixString returns a hash of s on top of the hash h. Strings hashed one after the other do not run
// into each other.
func MixString(h uint64, s string) uint64 {
	h ^= uint64(len(s)) * mulC
	for ; len(s) > 8; s = s[8:] {
		h = Mix(h, binary.LittleEndian.Uint64([]byte(s[:8])))
	}
	var tail [8]byte
	copy(tail[:], s)
	return Mix(h, binary.LittleEndian.Uint64(tail[:]))
}
