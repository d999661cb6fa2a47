package nftables

import (
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
)

// version says which state of the instance the kernel holds. Every transaction of ours deletes the
// element of the version before and adds the next: whoever committed for the same instance
// meanwhile makes the deletion fail with ENOENT, and so the whole transaction, while other programs
// may commit what they like. (The generation of nf_tables is one for the network namespace: each
// commit of anybody changes it.)
type version struct {
	// number counts commits, from a random number on, so that tables that were deleted and made
	// again do not come to a number that somebody remembers. Zero means that there is no version.
	number uint32
	// unswept says that the affinity maps may have clients of endpoints that are gone: a commit
	// took endpoints away, and its sweep has not ended.
	unswept bool
	// owners says that the index of owners is whole.
	owners bool
}

// The comment of the version's element says what else is so, separated by commas.
const (
	commentUnswept = "affinity to be swept"
	commentOwners  = "owners indexed"
)

// setVersion is the name of the set that holds the version. It is in the table of IPv4, which is
// there whenever the instance is.
const setVersion = "version"

func versionSet() *nft.Set {
	return &nft.Set{Name: setVersion, Key: []nft.Field{nft.FieldMark},
		Comment: "of what both tables hold"}
}

// key is the key of the version's element.
func (v version) key() []byte { return nft.Native32(v.number) }

// next returns the version after v; first is the first of all.
func (v version) next(first uint32, unswept, owners bool) version {
	n := version{v.number + 1, unswept, owners}
	if v.number == 0 {
		n.number = first
	}
	if n.number == 0 { // zero is none
		n.number = 1
	}
	return n
}

// appendTo adds the version's element to a list.
func (v version) appendTo(l *nft.ElemList) {
	e := nft.Elem{Key: v.key()}
	var notes []string
	if v.unswept {
		notes = append(notes, commentUnswept)
	}
	if v.owners {
		notes = append(notes, commentOwners)
	}
	if notes != nil {
		e.UserData = nft.AppendComment(nil, strings.Join(notes, ", "))
	}
	l.Add(e)
}

// versionOf returns the version that the elements of its set say; none if they are not one.
func versionOf(elems []nft.Elem) version {
	if len(elems) != 1 {
		return version{}
	}
	r := nft.Reader{Bytes: elems[0].Key}
	notes := strings.Split(nft.CommentOf(elems[0].UserData), ", ")
	v := version{r.Native(), slices.Contains(notes, commentUnswept),
		slices.Contains(notes, commentOwners)}
	if !r.Done() {
		return version{}
	}
	return v
}

// firstVersion returns the number of the first version of an instance.
func firstVersion() uint32 { return rand.Uint32() | 1 }
