package plan

import "math/bits"

// Capacity gives a set that starts with many elements room for four times as many elements. The
// kernel then allocates a hash table that is large enough from the start. Filling it takes half the
// time that a growing table needs. It is never rehashed, so it can be read at any time. If the set
// is full, the kernel returns ENFILE, and the next commit replaces the set.
//
// A set of hundreds of thousands of elements gets room for at least twice as many: for as many
// elements as fit into the same number of buckets (nft_hash_buckets). The kernel clears the buckets
// in one transaction: for a million elements 32 MB in 50 ms, not 128 MB in 285 ms.
func Capacity(n int) uint32 {
	if n < Growing {
		return 0
	}
	if n < 1<<18 {
		return 1 << bits.Len(uint(4*n-1))
	}
	return 3 << (bits.Len(uint((8*n-1)/3)) - 2)
}

// Growing is the minimum number of elements of a set with a fixed capacity. Smaller sets grow.
const Growing = 1000

// firstMaglev is the minimum number of entries for which [Capacity] sizes a map of Maglev, or a map
// of a hash whose services prefer near endpoints: a service has as many entries there as in Maglev.
// So a map with the 1,021 entries of its first service has room for 64 services, and 1 MB of
// buckets.
const firstMaglev = 16 * 1021
