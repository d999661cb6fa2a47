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

// This file is the index of owners. It lets a program find the objects of one owner among the
// frontends of thousands of others by asking for elements. The kernel holds three things for that:
//
// - the map owner-frontends leads from an owner and a number, from 0 on, to a frontend;
// - the set owner-hairpins has an owner with each address that is a hairpin of it;
// - an address in hairpins or cluster-ips that several owners need has a comment that counts them:
// the last of the owners removes the address.
//
// A commit of parts keeps the index, and notes in the version that the index is whole. A commit of
// a whole state, which knows no owners, empties it. If the index is empty or does not match the
// other sets, the next commit of parts reads everything and makes the index anew.

const (
	setOwnerFrontends = "owner-frontends"
	setOwnerHairpins  = "owner-hairpins"
)

// isOwners reports whether a set belongs to the index.
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

// ownerID stands for an owner in the index. It is cut from a cryptographic hash, so that no program
// can choose two names of owners with the same ID.
type ownerID [12]byte

func idOf(owner string) ownerID {
	sum := sha256.Sum256([]byte(owner))
	return ownerID(sum[:])
}

// number is the key of the owner's n-th frontend in the index.
func (id ownerID) number(n int) []byte { return append(id[:], nft.Native32(uint32(n))...) }

// indexed encodes a frontend's key with its address, even for a node port.
func indexed(k servicemodel.FrontendKey) []byte {
	var b []byte
	if k.NodePort() {
		b = nft.AppendAddr(nil, k.Addr)
	}
	return nft.AppendFrontend(b, k)
}

// hairpin is the key of an owner's hairpin address in the index.
func (id ownerID) hairpin(a netip.Addr) []byte { return append(nft.AppendAddr(nil, a), id[:]...) }

// addrUsers counts the owners of each address in a set. An address that is not in the set has no
// entry.
type addrUsers map[netip.Addr]int

const usersWord = " owners"

// usersElem is the element of an address with so many users. A single user is not written, because
// the addresses of a whole state have no count either.
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

// owning says what the index needs from the commit that follows an observation of parts.
type owning struct {
	// owners are the owners whose parts change. If whole is set, everything was read, and the index
	// is made anew for all owners.
	owners []string
	whole  bool
}

// ownership is the content of one table's index.
type ownership struct {
	frontends map[string][]servicemodel.FrontendKey // in the order of their numbers
	hairpins  map[string]map[netip.Addr]bool
	// users are the users of cluster IPs and of hairpins, by set.
	users map[string]addrUsers
}

func newOwnership() ownership {
	return ownership{frontends: map[string][]servicemodel.FrontendKey{},
		hairpins: map[string]map[netip.Addr]bool{},
		users:    map[string]addrUsers{setClusterIPs: {}, setHairpins: {}}}
}

// parts adds the frontends and addresses that owners hold in t, of one family.
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

// planOwners plans the index, and the addresses that owners share. A commit of a whole state
// empties the index, because it would no longer be whole.
func (pl *planner) planOwners(p *plan) {
	for _, t := range p.tables {
		switch {
		case !t.next.exists:
		case pl.owning != nil:
			pl.indexOwners(p, t)
		case !t.create && !t.renew:
			t.flushed = ownerSets(t.f)
		}
	}
	p.mark = pl.owning != nil && pl.owning.whole
}

// indexOwners plans the index of one table.
func (pl *planner) indexOwners(p *plan, t *tablePlan) {
	o := pl.owning
	was, before, now := t.have.index, newOwnership(), newOwnership()
	owners := pl.ownersAfter(p.c)
	now.parts(t.f, owners, p.c.New)
	if t.create || t.renew {
		was = newOwnership()
	} else if o.whole {
		t.flushed = ownerSets(t.f)
	} else {
		before.parts(t.f, owners, p.c.Old)
		before.users[setHairpins] = addrUsers{}
		for _, owner := range owners { // the index is the authority on the owners of hairpins
			for a := range was.hairpins[owner] {
				before.users[setHairpins][a]++
			}
		}
	}
	for _, owner := range owners {
		t.differ(func(to sink) { was.elements(owner, to) },
			func(to sink) { now.elements(owner, to) })
	}
	for _, set := range addressSets {
		pl.users(t, set, was.users[set], before.users[set], now.users[set])
	}
	t.index = now
}

// ownersAfter returns the owners that the known part of the index covers after a change set.
func (pl *planner) ownersAfter(c *servicemodel.ChangeSet) []string {
	if pl.owning.whole {
		return slices.Collect(c.New.Owners())
	}
	return pl.owning.owners
}

// elements writes the index of an owner.
func (o *ownership) elements(owner string, to sink) {
	id := idOf(owner)
	for n, k := range o.frontends[owner] {
		to(setOwnerFrontends, nft.Elem{Key: id.number(n), Data: indexed(k)})
	}
	for _, a := range slices.SortedFunc(maps.Keys(o.hairpins[owner]), netip.Addr.Compare) {
		to(setOwnerHairpins, nft.Elem{Key: id.hairpin(a)})
	}
}

// users plans a set of addresses. was is the number of owners that each address has in the kernel.
// before is how many of these are among the owners that change. now is how many of the owners that
// change need the address from now on. users adds the other owners to now. If everything was read,
// there are no other owners.
func (pl *planner) users(t *tablePlan, set string, was, before, now addrUsers) {
	all := maps.Clone(now)
	maps.Copy(all, was)
	for _, a := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
		n := now[a]
		if !pl.owning.whole {
			n += max(0, was[a]-before[a])
		}
		if now[a] = n; n == was[a] {
			continue
		}
		if was[a] > 0 {
			t.del(set, nft.Elem{Key: appendAddrKey(nil, set, a)})
		}
		if n > 0 {
			t.add(set, usersElem(set, a, n))
		}
	}
}
