package servicemodel

import (
	"iter"
	"slices"
)

// align walks two sorted lists side by side and yields the indexes of elements that belong
// together, -1 where one list has none.
func align[T any](a, b []T, compare func(T, T) int) iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		i, j := 0, 0
		for i < len(a) || j < len(b) {
			c := 0
			switch {
			case i == len(a):
				c = 1
			case j == len(b):
				c = -1
			default:
				c = compare(a[i], b[j])
			}
			x, y := i, j
			if c > 0 {
				x = -1
			} else {
				i++
			}
			if c < 0 {
				y = -1
			} else {
				j++
			}
			if !yield(x, y) {
				return
			}
		}
	}
}

// byPort yields the claims of each service port of a list sorted by service port.
func byPort(claims []*Frontend) iter.Seq2[PortName, []*Frontend] {
	return func(yield func(PortName, []*Frontend) bool) {
		for len(claims) > 0 {
			n := 1
			for n < len(claims) && claims[n].Service == claims[0].Service {
				n++
			}
			if !yield(claims[0].Service, claims[:n:n]) {
				return
			}
			claims = claims[n:]
		}
	}
}

// compareClaims orders the claims of a service by service port and key.
func compareClaims(a, b *Frontend) int {
	if c := a.Service.Compare(b.Service); c != 0 {
		return c
	}
	return a.Key.Compare(b.Key)
}

func comparePools(a, b *Pool) int { return a.ID.Compare(b.ID) }

// filter returns the elements of list for which keep holds. If that is all of them, it returns list
// itself.
func filter[T any](list []T, keep func(T) bool) []T {
	for i, x := range list {
		if keep(x) {
			continue
		}
		kept := slices.Clone(list[:i])
		for _, x := range list[i+1:] {
			if keep(x) {
				kept = append(kept, x)
			}
		}
		return kept
	}
	return list
}
