package nftables

import (
	"encoding/binary"
	"math"
	"math/bits"
	"net/netip"

	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// Chooser returns the function that chooses the slot for a new connection to a pool: by a hash of
// the client's address, and also of its port if the scheduler includes the port. It returns nil if
// the pool is empty or if its scheduler does not hash clients. The pool must not change afterwards.
// Call Chooser once for many clients, because it may compute a Maglev table. The returned function
// is safe for concurrent use. It ignores session affinity: remembered clients keep their endpoint.
func Chooser(p *servicemodel.Pool) func(client netip.AddrPort) (slot int) {
	w := form.WayOf(p)
	if w != form.ByHash && w != form.ByMaglev || len(p.Slots) == 0 {
		return nil
	}
	_, port, _ := p.Scheduler.Split()
	drawer := func(client netip.AddrPort) func(mod int, seed uint32) int {
		key := client.Addr().AsSlice()
		if port {
			key = append(key, byte(client.Port()>>8), byte(client.Port()), 0, 0)
		}
		return func(mod int, seed uint32) int {
			return int(uint64(jhash(key, seed)) * uint64(mod) >> 32)
		}
	}

	if w == form.ByMaglev {
		table := p.Maglev()
		return func(client netip.AddrPort) int {
			return int(table[drawer(client)(len(table), form.SeedMaglev)])
		}
	}

	units := p.UnitsOf()
	return func(client netip.AddrPort) int { return level(units, drawer(client)) }
}

// Shares returns the share of new connections that each slot of a pool has in the kernel, from 0 to
// 1. For Maglev, it counts the entries of the table. For a hash, it computes the limit of what
// [Chooser] returns for a very large number of clients. It ignores failed draws, which are less
// than 2^-18 of all draws.
func Shares(p *servicemodel.Pool) []float64 {
	shares := make([]float64, len(p.Slots))
	switch form.WayOf(p) {
	case form.ByMaglev:
		table := p.Maglev()
		for _, slot := range table {
			shares[slot] += 1 / float64(len(table))
		}
	case form.ByHash:
		units := p.UnitsOf()
		for at, share := range levelShares(units) {
			if units[at] >= 0 {
				shares[units[at]] += share
			}
		}
	default:
		return p.Shares()
	}

	return shares
}

// levelShares returns the probability with which level selects each unit.
func levelShares(units []int32) []float64 {
	n := len(units)
	shares, left := make([]float64, n), 1.
	for half := 1 << bits.Len(uint(n-1)) / 2; half > 0; half /= 2 {
		here, there := shares[half:min(n, 2*half)], 0
		for i := range here {
			if units[half+i] >= 0 {
				there++
			}
		}

		again := float64(half-there) / float64(2*half) // the units that are missing
		each := left * (1 - math.Pow(again, form.Attempts)) / (1 - again) / float64(2*half)
		for i := range here {
			if units[half+i] >= 0 {
				here[i] = each
			}
		}

		left -= each * float64(there)
	}

	shares[0] += left
	return shares
}

// level descends through the levels of a hash to a unit, and returns the slot of the unit.
func level(units []int32, draw func(mod int, seed uint32) int) int {
	for half := 1 << bits.Len(uint(len(units)-1)) / 2; half > 0; half /= 2 {
		for i := range form.Attempts {
			seed := uint32(form.SeedHash + bits.Len(uint(half))<<8 + i)
			if draw(2, seed) == 0 {
				break
			}
			if at := draw(2*half, seed); at < len(units) && units[at] >= 0 {
				return int(units[at])
			}
		}
	}

	return int(units[0])
}

// jhash is the kernel's hash of a whole number of words (include/linux/jhash.h).
func jhash(k []byte, seed uint32) uint32 {
	word := func() (w uint32) {
		w, k = binary.NativeEndian.Uint32(k), k[4:]
		return w
	}

	start := 0xdeadbeef + uint32(len(k)) + seed
	a, b, c := start, start, start
	rol := bits.RotateLeft32
	for len(k) > 12 {
		a, b, c = a+word(), b+word(), c+word()
		a, c = (a-c)^rol(c, 4), c+b
		b, a = (b-a)^rol(a, 6), a+c
		c, b = (c-b)^rol(b, 8), b+a
		a, c = (a-c)^rol(c, 16), c+b
		b, a = (b-a)^rol(a, 19), a+c
		c, b = (c-b)^rol(b, 4), b+a
	}

	switch len(k) {
	case 12:
		a, b, c = a+word(), b+word(), c+word()
	case 8:
		a, b = a+word(), b+word()
	case 4:
		a += word()
	case 0:
		return c
	}

	c = (c ^ b) - rol(b, 14)
	a = (a ^ c) - rol(c, 11)
	b = (b ^ a) - rol(a, 25)
	c = (c ^ b) - rol(b, 16)
	a = (a ^ c) - rol(c, 4)
	b = (b ^ a) - rol(a, 14)
	return (c ^ b) - rol(b, 24)
}
