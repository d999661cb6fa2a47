package nftables

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
)

// version says which state of the instance the kernel holds. Transactions of an instance are
// counted in epochs: each has a set of its own in the kernel, and each transaction adds the next
// number to it, which must not be there. So whoever committed for the same instance meanwhile makes
// the transaction fail as a whole with EEXIST, or with ENOENT if he began another epoch, while
// other programs may commit what they like. (The generation of nf_tables is one for the network
// namespace: each commit of anybody changes it.)
//
// A transaction deletes no version, but for the last of an epoch, which also deletes the set and
// makes that of the next epoch. For a socket that has committed a deletion is closed only after an
// RCU grace period (nft_rcv_nl_event in net/netfilter/nf_tables_api.c): a program that runs once
// for each change would wait for it.
type version struct {
	// epoch names the set. The first of an instance is random, so that tables that were deleted and
	// made again do not come to one that somebody remembers.
	epoch uint32
	// number counts the transactions of the epoch, from 1 on. Zero means that there is no version.
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

// versionPrefix begins the name of the set of an epoch. It is in the table of IPv4, which is there
// whenever the instance is.
const versionPrefix = "version-"

// epochLength is how many transactions an epoch has. A reading dumps as many elements, and a
// listing shows them; they fit into one datagram.
const epochLength = 127

// versionSet is the set of an epoch. Of a set that has a size and keys of four bytes, the kernel
// makes a hash table that never moves (nft_hash_fast_ops in net/netfilter/nft_set_hash.c).
func versionSet(epoch uint32) *nft.Set {
	return &nft.Set{Name: fmt.Sprintf("%s%08x", versionPrefix, epoch),
		Key: []nft.Field{nft.FieldMark}, Size: epochLength + 1,
		Comment: "transactions for both tables"}
}

// epochOf is the inverse of versionSet, and false if it is another set.
func epochOf(name string, spec nft.SetSpec) (epoch uint32, ok bool) {
	if _, err := fmt.Sscanf(name, versionPrefix+"%08x", &epoch); err != nil {
		return 0, false
	}
	s := versionSet(epoch)
	return epoch, s.Name == name && s.Spec() == spec
}

// isVersion reports whether a set is that of an epoch.
func isVersion(name string) bool { return strings.HasPrefix(name, versionPrefix) }

// randomEpoch returns the first epoch of an instance.
func randomEpoch() uint32 { return rand.Uint32() }

// next returns the version after v. A new epoch begins where the set of the old one is full or,
// anew, goes with its table; first is that of an instance that has none.
func (v version) next(anew bool, first func() uint32, unswept, owners bool) version {
	n := version{v.epoch, v.number + 1, unswept, owners}
	switch {
	case v.number == 0:
		n.epoch, n.number = first(), 1
	case anew, v.number == epochLength:
		n.epoch, n.number = v.epoch+1, 1
	}
	return n
}

// elem is the element of the number in the set of an epoch.
func (v version) elem(number uint32) *nft.ElemList {
	e := nft.Elem{Key: nft.Native32(number)}
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
	l := &nft.ElemList{}
	l.Add(e)
	return l
}

// versionOf returns the version that the elements of the set of an epoch say: the last one. They
// must be as many as were counted, from 1 on.
func versionOf(epoch uint32, elems []nft.Elem) (version, bool) {
	v, seen := version{epoch: epoch}, make([]bool, len(elems))
	for _, e := range elems {
		r := nft.Reader{Bytes: e.Key}
		n := r.Native()
		if !r.Done() || n < 1 || int(n) > len(elems) || seen[n-1] {
			return version{}, false
		}
		seen[n-1] = true
		if int(n) == len(elems) {
			notes := strings.Split(nft.CommentOf(e.UserData), ", ")
			v.number, v.unswept = n, slices.Contains(notes, commentUnswept)
			v.owners = slices.Contains(notes, commentOwners)
		}
	}
	return v, v.number > 0 && v.number <= epochLength
}
