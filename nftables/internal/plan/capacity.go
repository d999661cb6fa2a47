package plan

import "math/bits"

// Capacity gives a set that begins with many elements room for four times as many. The kernel then
// makes a hash table that is large enough from the start. Filling it takes half the time of filling
// one that grows. It is never rehashed, so it can be read at any time. If the set is full, the
// kernel returns ENFILE, and the next commit replaces the set.
//
// A set of hundreds of thousands gets room for twice as many at least, and just as many as need no
// more buckets (nft_hash_buckets). The kernel clears their memory in one transaction: for a million
// elements 32 MB in 50 ms, not 128 MB in 285 ms.
func Capacity(n int) uint32 {
	if n < Growing {
		return 0
	}
	if n < 1<<18 {
		return 1 << bits.Len(uint(4*n-1))
	}
	return 3 << (bits.Len(uint((8*n-1)/3)) - 2)
}

// Growing is for how many elements a set is made that grows as it must.
const Growing = 1000

// firstMaglev is for how many entries a map of Maglev is made at least, and one of a hash whose
// services prefer near endpoints, which have as many. So one with the 1,021
// entries of a first service has room for those of 64, and 1 MB of buckets.
const firstMaglev = 16 * 1021
