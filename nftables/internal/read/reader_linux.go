package read

import (
	"context"
	"errors"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/nftables/internal/form"
)

// Reader reads the tables of an instance.
type Reader struct {
	Conn *rawnl.Conn
	Req  rawnl.Batch
	// Queriers request elements, in parallel.
	Queriers [2]*querier
	// Dumpable limits the size of a set that a reading dumps to find elements that are not desired.
	// The limit applies to sets that grow with the endpoints, if the reading knows the desired
	// table.
	Dumpable int
	hooks    form.Hooks
	// takeOver says that tables without the instance's marks belong to the instance.
	takeOver bool
	// Chunk is the number of questions about unwanted elements that are sent at once.
	Chunk int
}

// The numbers of elements to request at once. Larger numbers take more memory.
const (
	Chunk        = 512
	chunkObjects = 64 // wanted objects, each with all of its elements
	// queryEntries is the number of elements that one message requests. The kernel stops at the
	// first missing element. With short messages, one datagram finds many missing elements. Longer
	// messages are not faster.
	queryEntries = 20
)

// A dump of this many elements takes some 20 ms. Four times as many elements take ten times as
// long.
const dumpable = 1 << 14

// NewReader returns a reader that asks through two connections.
func NewReader(conns [2]*rawnl.Conn, at form.Hooks, takeOver bool) Reader {
	return Reader{Conn: conns[0], Queriers: [2]*querier{{Conn: conns[0]}, {Conn: conns[1]}},
		Dumpable: dumpable, hooks: at, takeOver: takeOver, Chunk: Chunk}
}

// Close closes the connections.
func (k *Reader) Close() error {
	return errors.Join(k.Queriers[0].Conn.Close(), k.Queriers[1].Conn.Close())
}

// About asks about a table.
func (k *Reader) About(f *nft.Family, table string) nft.Query {
	return nft.Query{Conn: k.Conn, Family: f, Table: table}
}

// querier requests elements through its own connection.
type querier struct {
	Conn    *rawnl.Conn
	req     rawnl.Batch
	list    nft.ElemList
	queried [][]int // by message, the questions that it asks
	asked   questions
}

// questions returns an empty list of questions, with the memory of the last list.
func (a *querier) questions() *questions {
	a.asked.reset()
	return &a.asked
}

// query asks the kernel the questions, and records the answers in them.
func (a *querier) query(ctx context.Context, r *Reading, q *questions) error {
	a.req.Reset()
	a.queried = a.queried[:0]
	for name, about := range q.of {
		set := r.sets[name]
		if set == nil {
			continue // its elements are never found
		}
		for asked := range slices.Chunk(about, queryEntries) {
			a.list.Reset()
			for _, i := range asked {
				a.list.Add(nft.Elem{Key: q.all[i].want.Key, KeyEnd: q.all[i].want.KeyEnd})
			}
			nft.AppendLookup(&a.req, r.Family, r.Name, set, &a.list)
			a.queried = append(a.queried, asked)
		}
	}

	return a.Conn.Lookup(ctx, &a.req, func(i, entry int, m rawnl.Message, found bool) error {
		if !found {
			return nil
		}
		return nft.DecodeElements(m.Attrs, func(e nft.Elem) error {
			q.all[a.queried[i][entry]].answer(e)
			return nil
		})
	})
}
