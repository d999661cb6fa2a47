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

// Growing is the number of elements from which a set gets a fixed capacity. A smaller one grows.
const Growing = 1000

// firstMaglev is the least number of entries from which [Capacity] is computed for a map of Maglev,
// and for one of a hash whose services prefer near endpoints: a service has as many entries there.
// So a map with the 1,021 entries of its first service has room for 64 services, and 1 MB of
// buckets.
const firstMaglev = 16 * 1021
