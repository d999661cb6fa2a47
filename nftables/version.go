package nftables

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
)

// version says which state of the instance the kernel holds. The transactions of an instance are
// counted in epochs. Each epoch has a set in the kernel, and each transaction adds the next number
// to it. If another writer of the instance has committed meanwhile, that number exists already, and
// the whole transaction fails with EEXIST, or with ENOENT if that writer began another epoch.
// Commits of other programs do not matter. (The generation of nf_tables belongs to the network
// namespace: every commit of any program changes it.)
//
// Only the last transaction of an epoch deletes: it deletes the set, and makes the next epoch's.
// The others do not, because after a commit with a deletion, closing the socket waits for an RCU
// grace period (nft_rcv_nl_event in net/netfilter/nf_tables_api.c). A program that runs once for
// each change would wait for it each time.
type version struct {
	// home is the family whose table has the set: the first table of a new instance, and another
	// one after that table was deleted. It is nil if the instance has no version.
	home *nft.Family
	// epoch names the set. The first epoch of an instance is random. So tables that were deleted
	// and made again do not reach an epoch that a running program remembers.
	epoch uint32
	// number counts the transactions of the epoch, from 1 on. Zero means that the instance has no
	// version.
	number uint32
	// unswept says that the affinity maps may have clients of endpoints that are gone: a commit
	// removed endpoints, and its sweep has not ended.
	unswept bool
	// owners says that the index of owners is whole.
	owners bool
	// unfinished says that the tables are being made in steps, and no packet meets them yet: see
	// [steps].
	unfinished bool
}

// The comment of the version's element has these words, separated by commas.
const (
	commentUnswept = "affinity to be swept"
	commentOwners  = "owners indexed"
	commentNotYet  = "not finished"
)

// versionPrefix begins the name of the set of an epoch.
const versionPrefix = "version-"

// epochLength is how many transactions an epoch has. A reading dumps as many elements, and a
// listing shows them. They fit into one datagram.
const epochLength = 127

// versionSet is the set of an epoch. Because it has a size and keys of four bytes, the kernel makes
// a hash table that is never rehashed (nft_hash_fast_ops in net/netfilter/nft_set_hash.c).
func versionSet(epoch uint32) *nft.Set {
	return &nft.Set{Name: versionName(epoch),
		Key: []nft.Field{nft.FieldMark}, Size: epochLength + 1,
		Comment: "transactions of the instance"}
}

// versionName is the name of the set of an epoch.
func versionName(epoch uint32) string {
	return versionPrefix + hex.EncodeToString(binary.BigEndian.AppendUint32(nil, epoch))
}

// epochOf is the inverse of versionSet. It returns false for any other set.
func epochOf(name string, spec nft.SetSpec) (epoch uint32, ok bool) {
	if !isVersion(name) {
		return 0, false
	}
	if _, err := fmt.Sscanf(name, versionPrefix+"%08x", &epoch); err != nil {
		return 0, false
	}
	s := versionSet(epoch)
	return epoch, s.Name == name && s.Spec() == spec
}

// isVersion reports whether a set is the set of an epoch.
func isVersion(name string) bool { return strings.HasPrefix(name, versionPrefix) }

// randomEpoch returns the first epoch of an instance.
func randomEpoch() uint32 { return rand.Uint32() }

// next returns the version after v. A new epoch begins in the table of the family home if the set
// of the old epoch is full, or if anew says that this set goes with its table. first returns the
// epoch of an instance without a version.
func (v version) next(anew bool, home *nft.Family, first func() uint32, unswept,
	owners bool) version {
	n := version{home: v.home, epoch: v.epoch, number: v.number + 1, unswept: unswept,
		owners: owners}
	switch {
	case v.number == 0:
		n.home, n.epoch, n.number = home, first(), 1
	case anew, v.number == epochLength:
		n.home, n.epoch, n.number = home, v.epoch+1, 1
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
	if v.unfinished {
		notes = append(notes, commentNotYet)
	}
	if notes != nil {
		e.UserData = nft.AppendComment(nil, strings.Join(notes, ", "))
	}
	l := &nft.ElemList{}
	l.Add(e)
	return l
}

// versionOf returns the version in the elements of an epoch's set: the last one. The numbers must
// be complete, from 1 on.
func versionOf(home *nft.Family, epoch uint32, elems []nft.Elem) (version, bool) {
	v, seen := version{home: home, epoch: epoch}, make([]bool, len(elems))
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
			v.unfinished = slices.Contains(notes, commentNotYet)
		}
	}
	return v, v.number > 0 && v.number <= epochLength
}
