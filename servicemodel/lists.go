package servicemodel

import (
	"iter"
	"slices"
)

// This file holds helpers for sorted lists.

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

// groups yields the elements of each key of a list in which elements of the same key are adjacent.
func groups[K comparable, T any](list []T, key func(T) K) iter.Seq2[K, []T] {
	return func(yield func(K, []T) bool) {
		for len(list) > 0 {
			n, k := 1, key(list[0])
			for n < len(list) && key(list[n]) == k {
				n++
			}
			if !yield(k, list[:n:n]) {
				return
			}
			list = list[n:]
		}
	}
}

// byPort yields the claims of each service port of a list sorted by service port.
func byPort(claims []*Frontend) iter.Seq2[PortName, []*Frontend] {
	return groups(claims, func(f *Frontend) PortName { return f.Service })
}

// filter returns the elements of list for which keep holds. If keep holds for all, it returns list
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

// inOrder returns the sorted list. If list is already sorted, it returns list itself.
func inOrder[T any](list []T, compare func(a, b T) int) []T {
	if slices.IsSortedFunc(list, compare) {
		return list
	}
	list = slices.Clone(list)
	slices.SortFunc(list, compare)
	return list
}

func either[T any](old, new *T) *T {
	if old != nil {
		return old
	}
	return new
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
