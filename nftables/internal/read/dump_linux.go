package read

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// ErrRehashed means that a dump has an element twice, or a wrong number of elements.
var ErrRehashed = fmt.Errorf("%w: the kernel was rehashing a set while it was read",
	rawnl.ErrDumpInterrupted)

// dump returns the pass that dumps the small or the large sets with more elements than were found.
// It keeps the elements that were not requested. A set that is too large for a dump makes the
// reading partial.
func (k *Reader) dump(large bool) func(context.Context, *Reading) error {
	return func(ctx context.Context, r *Reading) error {
		wanted := map[string]map[string]bool{} // the wanted keys in the sets to dump
		for set := range r.sets {
			switch {
			case !IsRead(set) || isLarge(set) != large || r.complete(set):
			case large && r.want != nil && r.found[set] > k.Dumpable:
				r.Partial = true
			default:
				wanted[set] = make(map[string]bool, r.found[set])
			}
		}

		if len(wanted) == 0 {
			return nil
		}
		for o := range objectsOf(r.Family, r.want) {
			if !o.expressible(r.want) {
				continue
			}
			o.elements(r.w, r.want, func(set string, e nft.Elem) {
				if keys := wanted[set]; keys != nil {
					keys[string(e.Key)+string(e.KeyEnd)] = true
				}
			})
		}

		for _, name := range slices.Sorted(maps.Keys(wanted)) {
			err := k.DumpSet(ctx, r, name, func(e nft.Elem) {
				if !wanted[name][string(e.Key)+string(e.KeyEnd)] {
					r.Add(name, e)
				}
			})
			if err != nil {
				return err
			}
		}

		return nil
	}
}

// DumpSet reads all elements of a set. A dump during a move of the set fails.
func (k *Reader) DumpSet(ctx context.Context, r *Reading, name string,
	fn func(nft.Elem)) error {
	count, known := r.Lengths[name]
	if known && count == 0 {
		return nil
	}
	seen, twice, err := k.Set(ctx, r.Family, r.Name, name, fn)
	if err == nil && (twice > 0 || known && seen != count) {
		err = errors.Join(ErrRehashed, errors.New("set "+name))
	}
	return err
}

// Set reads all elements of a set. It returns the number of different elements that it saw, and the
// number of repetitions. After many elements were added, the kernel moves the set to a larger hash
// table in the background. A dump during the move can contain elements twice, and miss as many
// other elements.
func (k *Reader) Set(ctx context.Context, f *nft.Family, table, set string,
	fn func(nft.Elem)) (seen, twice int, err error) {
	seed, hashes, n := maphash.MakeSeed(), map[uint64]struct{}{}, 0
	var key []byte
	err = k.About(f, table).Elements(ctx, set, func(e nft.Elem) error {
		key = append(append(key[:0], e.Key...), e.KeyEnd...)
		hashes[maphash.Bytes(seed, key)] = struct{}{}
		n++
		fn(e)
		return nil
	})
	return len(hashes), n - len(hashes), err
}
