package read

import (
	"context"
	"fmt"
	"sync"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// Elements reads the elements of a table, in this order:
//
//  1. Request the desired elements. A dump takes time quadratic in the number of elements, but
//     requests take linear time. The numbers of found elements show which sets have more. If
//     everything is as desired, the reading ends here.
//  2. Dump small sets with more elements. They name the frontends that are not desired.
//  3. Request one slot more than each desired pool has, in maps that are too large for a dump.
//  4. Leftover elements of the passes so far may concern service ports that look complete. All
//     elements of these service ports are then left over, too.
//  5. Request the slots of the frontends that are left over.
//  6. Request hairpins of the endpoints in those slots, and in pools that are not as desired.
//  7. Dump the large sets that still have more elements, as few as possible.
//  8. Leftover elements of that dump, too, may concern service ports that look complete.
func (k *Reader) Elements(ctx context.Context, r *Reading, want *servicemodel.Table) error {
	r.want = want
	defer func() { // readings are rare, and the questions of a whole instance take much memory
		for _, a := range k.Queriers {
			a.asked = questions{}
		}
	}()

	if err := k.queryWanted(ctx, r); err != nil {
		return fmt.Errorf("ask for wanted elements: %w", err)
	}
	asWanted := len(r.incomplete) == 0
	for name := range r.sets {
		asWanted = asWanted && (!IsRead(name) || r.complete(name))
	}
	if asWanted {
		return nil
	}
	return r.run(ctx, []pass{
		{"dump small sets that hold more", k.dump(false)},
		{"ask for a slot more than wanted", k.querying(r.slotsAfterWanted)},
		{"find contested service ports", r.contest},
		{"ask for slots of unwanted frontends", k.querying(r.slotsLeftOver)},
		{"ask for unwanted hairpins", k.querying(r.hairpinsLeftOver)},
		{"dump large sets that hold more", k.dump(true)},
		{"find contested service ports", r.contest},
	})
}

// queryWanted requests all desired elements. Two parallel connections need half the time, because
// readers take no lock in the kernel (nfnl_callback of NFT_MSG_GETSETELEM is NFNL_CB_RCU).
func (k *Reader) queryWanted(ctx context.Context, r *Reading) error {
	outer := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	jobs := make(chan []object)
	var mu sync.Mutex // guards r
	var group sync.WaitGroup
	for _, a := range k.Queriers {
		group.Go(func() {
			q, w := a.questions(), form.NewWriter()
			for objects := range jobs {
				q.reset()
				for _, o := range objects {
					if o.expressible(r.want) {
						o.elements(w, r.want, q.add)
					} else {
						q.add("", nft.Elem{}) // the kernel does not have the object
					}

					q.objects = append(q.objects, objectRun{o, len(q.all)})
				}

				if err := a.query(ctx, r, q); err != nil {
					cancel(err)
					return
				}

				mu.Lock()
				r.note(q)
				mu.Unlock()
			}
		})
	}

	objects := make([]object, 0, chunkObjects)
	send := func() {
		select {
		case jobs <- objects:
		case <-ctx.Done():
		}

		objects = make([]object, 0, chunkObjects)
	}

	for o := range objectsOf(r.Family, r.want) {
		if objects = append(objects, o); len(objects) == chunkObjects {
			if send(); ctx.Err() != nil {
				break
			}
		}
	}

	if len(objects) > 0 {
		send()
	}
	close(jobs)
	group.Wait()
	if err := wait.Ended(outer); err != nil {
		return err
	}
	return context.Cause(ctx)
}
