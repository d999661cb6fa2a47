package read

import (
	"bytes"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
)

// question asks the kernel for one element, and contains the answer.
type question struct {
	set   string
	want  nft.Elem
	found bool
	same  bool   // the element was found as wanted
	data  []byte // the data of the element that was found, if it is not as wanted
	ud    []byte
}

// answer records an element that the kernel returned.
func (q *question) answer(e nft.Elem) {
	if !bytes.Equal(e.Key, q.want.Key) || !bytes.Equal(e.KeyEnd, q.want.KeyEnd) {
		return // another range that contains the key
	}
	q.found, q.want.Goto = true, e.Goto
	q.same = bytes.Equal(e.Data, q.want.Data) && (bytes.Equal(e.UserData, q.want.UserData) ||
		nft.CommentOf(e.UserData) == nft.CommentOf(q.want.UserData))
	if !q.same {
		q.data, q.ud = bytes.Clone(e.Data), bytes.Clone(e.UserData)
	}
}

// elem is the element that was found. The caller must not keep its bytes.
func (q *question) elem() nft.Elem {
	e := q.want
	if !q.same {
		e.Data, e.UserData = q.data, q.ud
	}
	return e
}

// questions are sent together. Their memory is reused.
type questions struct {
	all     []question
	of      map[string][]int // the questions about each set
	objects []objectRun
	bytes   []byte // keys and other bytes of the questions
}

// objectRun marks the end of the questions about an object.
type objectRun struct {
	object
	to int // index among all questions
}

func (q *questions) reset() {
	q.all, q.objects, q.bytes = q.all[:0], q.objects[:0], q.bytes[:0]
	for set := range q.of {
		q.of[set] = q.of[set][:0]
	}
}

func (q *questions) keep(b []byte) []byte {
	if b == nil {
		return nil
	}
	at := len(q.bytes)
	q.bytes = append(q.bytes, b...)
	return q.bytes[at:len(q.bytes):len(q.bytes)]
}

// add asks for an element of a set.
func (q *questions) add(set string, e nft.Elem) {
	if q.of == nil {
		q.of = map[string][]int{}
	}
	q.of[set] = append(q.of[set], len(q.all))
	q.all = append(q.all, question{set: set, want: nft.Elem{Key: q.keep(e.Key),
		KeyEnd: q.keep(e.KeyEnd), Data: q.keep(e.Data), UserData: q.keep(e.UserData),
		Goto: e.Goto}})
}

// note records the answers about objects. If not all elements of an object exist as wanted, the
// object is incomplete, and its found elements are left over.
func (r *Reading) note(q *questions) {
	from := 0
	for _, o := range q.objects {
		about := q.all[from:o.to]
		from = o.to
		incomplete := slices.ContainsFunc(about, func(a question) bool { return !a.same })
		if incomplete {
			r.incomplete = append(r.incomplete, o.object)
		}
		for i := range about {
			a := &about[i]
			if !a.found {
				continue
			}
			if r.found[a.set]++; incomplete {
				r.Add(a.set, a.elem())
			}
		}
	}
}
