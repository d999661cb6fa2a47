package form

import (
	"crypto/sha256"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// This file is the index of owners. With it, a program finds the objects of one owner among the
// frontends of thousands of other owners by requesting elements. For this, the kernel has three
// things:
//
// - the map owner-frontends has an owner and a number, from 0 on, as key, and a frontend as value;
// if the frontend is a range, the map owner-ranges has the number instead;
// - the set owner-hairpins has an element for each hairpin address of an owner;
// - an address in hairpins or cluster-ips that several owners need has a comment that counts them:
// the last of these owners removes the address.
//
// A commit of parts keeps the index complete, and notes that in the version. A commit of a whole
// state, which knows no owners, empties the index. If the index is empty or does not match the
// other sets, the next commit of parts reads everything and rebuilds the index.

const (
	SetOwnerFrontends = "owner-frontends"
	SetOwnerRanges    = "owner-ranges"
	SetOwnerHairpins  = "owner-hairpins"
)

// IsOwners reports whether a set belongs to the index.
func IsOwners(name string) bool {
	return name == SetOwnerFrontends || name == SetOwnerRanges || name == SetOwnerHairpins
}

// OwnerSets lists the sets of the index in a table of a shape.
func OwnerSets(f *nft.Family, s *Shape) []*nft.Set {
	number := []nft.Field{nft.FieldMark, nft.FieldMark, nft.FieldMark, nft.FieldMark}
	l := []*nft.Set{
		{Name: SetOwnerFrontends, Key: number, Data: f.FrontendFields(false), Flags: nft.SetMap,
			Comment: "what each owner holds, by number"},
		{Name: SetOwnerHairpins, Key: append([]nft.Field{f.Addr}, number[1:]...),
			Comment: "whose hairpins they are"},
	}
	if s.Has(Ranges | NodeRanges) {
		l = append(l, &nft.Set{Name: SetOwnerRanges, Key: number, Data: KindRange.Key(f),
			Flags: nft.SetMap, Comment: "which ranges each owner holds, by number"})
	}

	return l
}

// ownerID represents an owner in the index. It is part of a cryptographic hash, so that no program
// can choose two owner names with the same ID.
type ownerID [12]byte

func OwnerIDOf(owner string) ownerID {
	sum := sha256.Sum256([]byte(owner))
	return ownerID(sum[:])
}

// Number is the key of the owner's n-th frontend in the index.
func (id ownerID) Number(n int) []byte { return append(id[:], nft.Native32(uint32(n))...) }

// indexed encodes a frontend's key with its address, even for a node port.
func indexed(k servicemodel.FrontendKey) []byte {
	var b []byte
	if k.NodePort() {
		b = nft.AppendAddr(nil, k.Addr)
	}
	return nft.AppendFrontend(b, k)
}

// Hairpin is the key of an owner's hairpin address in the index.
func (id ownerID) Hairpin(a netip.Addr) []byte { return append(nft.AppendAddr(nil, a), id[:]...) }

// AddrUsers counts the owners of each address in a set. An address that is not in the set has no
// entry.
type AddrUsers map[netip.Addr]int

const usersWord = " owners"

// UsersElem is the element of an address with this number of users. The number 1 is not written:
// the addresses of a whole state have no number, either.
func UsersElem(set string, a netip.Addr, users int) nft.Elem {
	e := nft.Elem{Key: AppendAddrKey(nil, set, a)}
	if users > 1 {
		e.UserData = nft.AppendComment(nil, strconv.Itoa(users)+usersWord)
	}
	return e
}

// UsersOf is the inverse of [UsersElem].
func UsersOf(e nft.Elem) int {
	count, ok := strings.CutSuffix(nft.CommentOf(e.UserData), usersWord)
	if n, err := strconv.ParseUint(count, 10, 31); ok && err == nil && n > 1 {
		return int(n)
	}
	return 1
}

// Ownership is the content of one table's index.
type Ownership struct {
	Frontends map[string][]servicemodel.FrontendKey // in the order of their numbers
	Hairpins  map[string]map[netip.Addr]bool
	// Users are the users of cluster IPs and of hairpins, by set.
	Users map[string]AddrUsers
}

func NewOwnership() Ownership {
	return Ownership{Frontends: map[string][]servicemodel.FrontendKey{},
		Hairpins: map[string]map[netip.Addr]bool{},
		Users:    map[string]AddrUsers{SetClusterIPs: {}, SetHairpins: {}}}
}

// Parts adds the frontends and addresses of owners in t, of one family.
func (o *Ownership) Parts(f *nft.Family, owners []string, t *servicemodel.Table) {
	own := func(a netip.Addr) bool { return servicemodel.FamilyOf(a) == f.Model }
	for _, owner := range owners {
		part := t.Part(owner)
		for fe := range part.Frontends() {
			if own(fe.Key.Addr) {
				o.Frontends[owner] = append(o.Frontends[owner], fe.Key)
			}
		}

		o.Hairpins[owner] = map[netip.Addr]bool{}
		for a := range part.Hairpins() {
			if own(a) {
				o.Hairpins[owner][a] = true
				o.Users[SetHairpins][a]++
			}
		}

		for a := range part.ClusterIPs() {
			if own(a) {
				o.Users[SetClusterIPs][a]++
			}
		}
	}
}

// Elements writes the index of an owner.
func (o *Ownership) Elements(owner string, to Sink) {
	id := OwnerIDOf(owner)
	for n, k := range o.Frontends[owner] {
		set := SetOwnerFrontends
		if KindOf(k).isRange() {
			set = SetOwnerRanges
		}
		to(set, nft.Elem{Key: id.Number(n), Data: indexed(k)})
	}
	for _, a := range slices.SortedFunc(maps.Keys(o.Hairpins[owner]), netip.Addr.Compare) {
		to(SetOwnerHairpins, nft.Elem{Key: id.Hairpin(a)})
	}
}
