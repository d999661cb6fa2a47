package nftables

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

// This file is the index of owners: what lets a program find what one owner holds among the
// frontends of thousands of others by asking for elements. Three things are in the kernel for that:
//
//   - the map owner-frontends leads from an owner and a number, from 0 on, to a frontend;
//   - the set owner-hairpins has an owner with each address that is a hairpin of it;
//   - an address in hairpins or cluster-ips that several owners need has a comment that counts
//     them: it goes with the last of them.
//
// A commit about parts keeps the index, and says in the version that it is whole. A commit of whole
// states, which knows no owners, empties it. Then, and where it does not fit to what else there is,
// the next one about parts reads everything and makes the index anew.

const (
	setOwnerFrontends = "owner-frontends"
	setOwnerHairpins  = "owner-hairpins"
)

// isOwners reports whether a set is one of the index.
func isOwners(name string) bool { return name == setOwnerFrontends || name == setOwnerHairpins }

func ownerSets(f *nft.Family) []*nft.Set {
	return []*nft.Set{
		{Name: setOwnerFrontends, Key: []nft.Field{nft.FieldMark, nft.FieldMark, nft.FieldMark,
			nft.FieldMark}, Data: f.FrontendFields(false), Flags: nft.SetMap,
			Comment: "what each owner holds, by number"},
		{Name: setOwnerHairpins, Key: []nft.Field{f.Addr, nft.FieldMark, nft.FieldMark,
			nft.FieldMark}, Comment: "whose hairpins they are"},
	}
}

// ownerID stands for an owner in the index. Whoever names owners should not be able to find two
// that have the same one: it is cut from a cryptographic hash.
type ownerID [12]byte

func idOf(owner string) ownerID {
	sum := sha256.Sum256([]byte(owner))
	return ownerID(sum[:])
}

// number is the key of the n-th frontend of the owner in the index.
func (id ownerID) number(n int) []byte { return append(id[:], nft.Native32(uint32(n))...) }

// frontend is the n-th frontend of the owner in the index.
func (id ownerID) frontend(n int, k servicemodel.FrontendKey) nft.Elem {
	return nft.Elem{Key: id.number(n), Data: indexed(k)}
}

// indexed is a key with its address, also if it is that of a node port.
func indexed(k servicemodel.FrontendKey) []byte {
	var b []byte
	if k.NodePort() {
		b = nft.AppendAddr(nil, k.Addr)
	}
	return nft.AppendFrontend(b, k)
}

// hairpin is an address of the owner in the index.
func (id ownerID) hairpin(a netip.Addr) nft.Elem {
	return nft.Elem{Key: append(nft.AppendAddr(nil, a), id[:]...)}
}

// addrUsers is of how many owners an address is. Those that are not in its set are not there.
type addrUsers map[netip.Addr]int

const usersWord = " owners"

// usersElem is the element of an address that has so many users. One is not counted, for that is
// what an address has that was written with a whole state.
func usersElem(set string, a netip.Addr, users int) nft.Elem {
	e := nft.Elem{Key: appendAddrKey(nil, set, a)}
	if users > 1 {
		e.UserData = nft.AppendComment(nil, strconv.Itoa(users)+usersWord)
	}
	return e
}

// usersOf is the inverse of usersElem.
func usersOf(e nft.Elem) int {
	count, ok := strings.CutSuffix(nft.CommentOf(e.UserData), usersWord)
	if n, err := strconv.ParseUint(count, 10, 31); ok && err == nil && n > 1 {
		return int(n)
	}
	return 1
}

// owning is what an observation of parts says of the index, for the commit that follows.
type owning struct {
	// owners are those whose parts change. If whole is set, everything was read, and the index is
	// made anew for all owners.
	owners   []string
	whole    bool
	families [2]ownership
}

// ownership is what the index of one table says of owners.
type ownership struct {
	frontends map[string][]servicemodel.FrontendKey // in the order of their numbers
	hairpins  map[string]map[netip.Addr]bool
	// users are those of cluster IPs and of hairpins, by set.
	users map[string]addrUsers
}

func newOwnership() ownership {
	return ownership{frontends: map[string][]servicemodel.FrontendKey{},
		hairpins: map[string]map[netip.Addr]bool{},
		users:    map[string]addrUsers{setClusterIPs: {}, setHairpins: {}}}
}

// parts returns what owners hold of one family in a table.
func (o *ownership) parts(f *nft.Family, owners []string, t *servicemodel.Table) {
	own := func(a netip.Addr) bool { return servicemodel.FamilyOf(a) == f.Model }
	for _, owner := range owners {
		part := t.Part(owner)
		for fe := range part.Frontends() {
			if own(fe.Key.Addr) {
				o.frontends[owner] = append(o.frontends[owner], fe.Key)
			}
		}
		o.hairpins[owner] = map[netip.Addr]bool{}
		for a := range part.Hairpins() {
			if own(a) {
				o.hairpins[owner][a] = true
				o.users[setHairpins][a]++
			}
		}
		for a := range part.ClusterIPs() {
			if own(a) {
				o.users[setClusterIPs][a]++
			}
		}
	}
}

// owned plans the index, and the addresses that owners share.
func (pl *planner) owned(i int, del, add sink) {
	f, o := nft.Families[i], pl.owning
	was, before, now := &o.families[i], newOwnership(), newOwnership()
	owners := o.owners
	if o.whole {
		owners = slices.Collect(pl.c.New.Owners())
	}
	now.parts(f, owners, pl.c.New)
	if fp := &pl.p.families[i]; fp.create {
		empty := newOwnership()
		was = &empty
	} else if o.whole {
		fp.flushed = ownerSets(f)
	} else {
		before.parts(f, owners, pl.c.Old)
		before.users[setHairpins] = addrUsers{}
		for _, owner := range owners { // the index knows better whose hairpins they are
			for a := range was.hairpins[owner] {
				before.users[setHairpins][a]++
			}
		}
	}
	for _, owner := range owners {
		pl.indexFrontends(owner, was.frontends[owner], now.frontends[owner], del, add)
		pl.indexHairpins(owner, was.hairpins[owner], now.hairpins[owner], del, add)
	}
	for _, set := range []string{setClusterIPs, setHairpins} {
		pl.users(set, was.users[set], before.users[set], now.users[set], del, add)
	}
	pl.p.owning.owners, pl.p.owning.families[i] = owners, now
}

// indexFrontends plans the frontends of an owner.
func (pl *planner) indexFrontends(owner string, was, is []servicemodel.FrontendKey, del,
	add sink) {
	id := idOf(owner)
	for n := range max(len(was), len(is)) {
		if n < len(was) && n < len(is) && was[n] == is[n] {
			continue
		}
		if n < len(was) {
			del(setOwnerFrontends, id.frontend(n, was[n]))
		}
		if n < len(is) {
			add(setOwnerFrontends, id.frontend(n, is[n]))
		}
	}
}

// indexHairpins plans the hairpins of an owner.
func (pl *planner) indexHairpins(owner string, was, is map[netip.Addr]bool, del, add sink) {
	id := idOf(owner)
	for _, a := range slices.SortedFunc(maps.Keys(was), netip.Addr.Compare) {
		if !is[a] {
			del(setOwnerHairpins, id.hairpin(a))
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(is), netip.Addr.Compare) {
		if !was[a] {
			add(setOwnerHairpins, id.hairpin(a))
		}
	}
}

// users plans a set of addresses. was says how many owners each has in the kernel, before how many
// of those are among the owners that change, and now how many of those need it from now on; now is
// given those of the others, too. If everything was read, there are no others.
func (pl *planner) users(set string, was, before, now addrUsers, del, add sink) {
	all := maps.Clone(was)
	maps.Copy(all, now)
	for _, a := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
		n := now[a]
		if !pl.owning.whole {
			n += max(0, was[a]-before[a])
		}
		if now[a] = n; n == was[a] {
			continue
		}
		if was[a] > 0 {
			del(set, nft.Elem{Key: appendAddrKey(nil, set, a)})
		}
		if n > 0 {
			add(set, usersElem(set, a, n))
		}
	}
}
