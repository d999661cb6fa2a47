package form

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
)

// Version identifies the state of the instance in the kernel. The transactions of an instance are
// counted in epochs. Each epoch has a set in the kernel, and each transaction adds the next number
// to the set. If another writer of the instance has committed first, that number exists already,
// and the whole transaction fails with EEXIST, or with ENOENT if that writer began another epoch.
// Commits of other programs to other tables do not matter. (The generation of nf_tables belongs to
// the network namespace: every commit of any program changes it.)
//
// Only the last transaction of an epoch deletes anything: it deletes the set, and creates the set
// of the next epoch. The other transactions delete nothing, because after a commit with a deletion,
// closing the socket waits for an RCU grace period (nft_rcv_nl_event in
// net/netfilter/nf_tables_api.c). A program that runs once for each change would have to wait each
// time.
type Version struct {
	// Home is the family whose table has the set: the first table of a new instance, and another
	// table after that table was deleted. It is nil if the instance has no version.
	Home *nft.Family
	// Epoch names the set. The first epoch of an instance is random. So if tables are deleted and
	// created again, their epochs differ from those that a running program remembers.
	Epoch uint32
	// Number counts the transactions of the epoch, from 1 on. Zero means that the instance has no
	// version.
	Number uint32
	// Unswept says that the affinity maps may have clients of removed endpoints: a commit removed
	// endpoints, and its sweep has not ended.
	Unswept bool
	// Owners says that the index of owners is complete.
	Owners bool
	// Unfinished says that the tables are being created in several transactions, and that no
	// packets reach them yet.
	Unfinished bool
}

// The comment of the version's element has these words, separated by commas.
const (
	commentUnswept = "affinity to be swept"
	commentOwners  = "owners indexed"
	commentNotYet  = "not finished"
)

// versionPrefix begins the name of the set of an epoch.
const versionPrefix = "version-"

// EpochLength is the number of transactions of an epoch. A reading dumps up to this many elements,
// and a listing shows them. They fit into one datagram.
const EpochLength = 127

// VersionSet is the set of an epoch. Because the set has a size and keys of four bytes, the kernel
// creates a hash table that is never rehashed (nft_hash_fast_ops in net/netfilter/nft_set_hash.c).
func VersionSet(epoch uint32) *nft.Set {
	return &nft.Set{Name: VersionName(epoch),
		Key: []nft.Field{nft.FieldMark}, Size: EpochLength + 1,
		Comment: "transactions of the instance"}
}

// VersionName is the name of the set of an epoch.
func VersionName(epoch uint32) string {
	return versionPrefix + hex.EncodeToString(binary.BigEndian.AppendUint32(nil, epoch))
}

// EpochOf is the inverse of [VersionSet]. It returns false for any other set.
func EpochOf(name string, spec nft.SetSpec) (epoch uint32, ok bool) {
	if !IsVersion(name) {
		return 0, false
	}
	if _, err := fmt.Sscanf(name, versionPrefix+"%08x", &epoch); err != nil {
		return 0, false
	}
	s := VersionSet(epoch)
	return epoch, s.Name == name && s.Spec() == spec
}

// IsVersion reports whether a set is the set of an epoch.
func IsVersion(name string) bool { return strings.HasPrefix(name, versionPrefix) }

// RandomEpoch returns the first epoch of an instance.
func RandomEpoch() uint32 { return rand.Uint32() }

// Next returns the version after v. A new epoch begins in the table of the family home if the set
// of the old epoch is full, or if anew says that this set is deleted with its table. first returns
// the epoch of an instance without a version.
func (v Version) Next(anew bool, home *nft.Family, first func() uint32, unswept,
	owners bool) Version {
	n := Version{Home: v.Home, Epoch: v.Epoch, Number: v.Number + 1, Unswept: unswept,
		Owners: owners}
	switch {
	case v.Number == 0:
		n.Home, n.Epoch, n.Number = home, first(), 1
	case anew, v.Number == EpochLength:
		n.Home, n.Epoch, n.Number = home, v.Epoch+1, 1
	}

	return n
}

// Elem is the element of the number in the set of an epoch.
func (v Version) Elem(number uint32) *nft.ElemList {
	e := nft.Elem{Key: nft.Native32(number)}
	var notes []string
	if v.Unswept {
		notes = append(notes, commentUnswept)
	}
	if v.Owners {
		notes = append(notes, commentOwners)
	}
	if v.Unfinished {
		notes = append(notes, commentNotYet)
	}
	if notes != nil {
		e.UserData = nft.AppendComment(nil, strings.Join(notes, ", "))
	}
	l := &nft.ElemList{}
	l.Add(e)
	return l
}

// VersionOf returns the version in the elements of an epoch's set: the last number. The numbers
// must be complete, from 1 on.
func VersionOf(home *nft.Family, epoch uint32, elems []nft.Elem) (Version, bool) {
	v, seen := Version{Home: home, Epoch: epoch}, make([]bool, len(elems))
	for _, e := range elems {
		r := nft.Reader{Bytes: e.Key}
		n := r.Native()
		if !r.Done() || n < 1 || int(n) > len(elems) || seen[n-1] {
			return Version{}, false
		}
		seen[n-1] = true
		if int(n) == len(elems) {
			notes := strings.Split(nft.CommentOf(e.UserData), ", ")
			v.Number, v.Unswept = n, slices.Contains(notes, commentUnswept)
			v.Owners = slices.Contains(notes, commentOwners)
			v.Unfinished = slices.Contains(notes, commentNotYet)
		}
	}

	return v, v.Number > 0 && v.Number <= EpochLength
}
