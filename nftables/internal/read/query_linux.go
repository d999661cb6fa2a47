package read

import (
	"context"

	"github.com/kernlb/kernlb/internal/nft"
)

// querying returns a pass that requests the elements that which names. It adds the existing
// elements to the reading: they are not as desired.
func (k *Reader) querying(which func(queryFunc)) func(context.Context, *Reading) error {
	return func(ctx context.Context, r *Reading) error {
		q, err := k.Queriers[0].questions(), error(nil)
		send := func() {
			if err == nil {
				err = k.Queriers[0].query(ctx, r, q)
			}
			for i := range q.all {
				if a := &q.all[i]; err == nil && a.found && r.Add(a.set, a.elem()) {
					r.found[a.set]++
				}
			}

			q.reset()
		}

		which(func(set string, key []byte) {
			if q.add(set, nft.Elem{Key: key}); len(q.all) >= k.Chunk {
				send()
			}
		})

		send()
		return err
	}
}
