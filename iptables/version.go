package iptables

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
)

// The version of an instance. Each commit gives the instance a new version in the same transaction:
// it deletes the known version, which must exist, and creates the next version, which must not. If
// two writers know the same version, only one of them succeeds. The kernel refuses the whole
// transaction of the other with ENOENT, whatever other programs commit in between. A writer that
// finds its last version unchanged knows that no other writer of the instance has committed since.
//
// A version is an empty chain in the table nat of the family that has the settings ([homeOf]):
// KUBE-VERSION-1a2b3c4d. The kernel finds a chain by its name, so the number is part of the
// comparison. A rule would not work: it is deleted by its handle, and handles start over in a new
// table. iptables shows the chain, saves it and restores it. kube-proxy and the kubelet ignore it.
// The number of each commit is random, not counted. If an administrator restores last week's rules,
// last week's version is back. Counting on from there would repeat versions that other writers may
// still remember.

// kindVersion is the second part of the names of versions.
const kindVersion = "VERSION"

// version returns the name of the empty chain that stands for a version.
func (n names) version(v uint32) string {
	return fmt.Sprintf("%s-%s-%08x", n.prefix, kindVersion, v)
}

func (n names) parseVersion(chain string) (uint32, bool) {
	rest, ok := strings.CutPrefix(chain, n.prefix+"-"+kindVersion+"-")
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseUint(rest, 16, 32)
	return uint32(v), err == nil && n.version(uint32(v)) == chain
}

// newVersion returns a random version, which hardly any other writer can know.
func newVersion() uint32 { return rand.Uint32() }

// versionsOf returns the existing versions, in order; normally there is one. There are several if
// rules were restored without flushing the existing ones. The kernel does not delete a chain that
// has a rule or to which a rule jumps. Such a chain is no longer a version: it is surplus, and the
// instance gets a new version.
func (l *layout) versionsOf(r *raw) []chainID {
	var versions []chainID
	for id, c := range r.chains {
		if l.isVersion(id) && c.Use == 0 {
			versions = append(versions, id)
		}
	}

	slices.SortFunc(versions, chainID.compare)
	return versions
}

// isVersion reports whether a chain is a version, or used to be a version.
func (l *layout) isVersion(id chainID) bool {
	_, ok := l.names.parseVersion(id.name)
	return ok && id.table.kind() == nat
}

// renewal is the change of the version in a plan.
type renewal struct {
	gone []chainID // versions that must exist
	next chainID   // the version that must not exist, if made is set
	made bool
}

// renew returns the renewal of the version, in the table nat of a family. made says whether the
// instance will have rules.
func (l *layout) renew(k *kernelState, home *nft.Family, made bool) *renewal {
	return &renewal{gone: k.versions, next: nat.of(home).chain(l.names.version(k.nextVersion)),
		made: made}
}

// encodeVersion appends the version's messages. They come first in a transaction, so that a late
// writer's error states the reason.
func (e *encoder) encodeVersion(r *renewal) {
	for _, v := range r.gone {
		e.of(v).DeleteUnusedChain(v.name)
	}
	if r.made {
		e.of(r.next).CreateChain(&nft.Chain{Name: r.next.name})
	}
}

// Uses. The kernel reports one number with each chain (NFTA_CHAIN_USE): the number of rules in the
// chain plus the number of rules that jump to the chain. It lists ten thousand chains in some
// milliseconds. So added and removed rules in chains of services can be detected at little cost.
// The numbers do not show that a rule was replaced. The backend keeps one sum for all these
// numbers: it multiplies each number by a hash of the chain's identity. So the sum after a change
// follows from the change.

// uses is a sum over the chains of an instance, except shared chains: the hash of the chain times
// its number plus one.
type uses uint64

// add counts n more uses of a chain. A new chain is one more use.
func (u *uses) add(l *layout, id chainID, n int) {
	if n != 0 && l.names.owned(id.name) {
		*u += uses(maphash.Comparable(l.seed, id) * uint64(n))
	}
}

// usesOf returns the sum for the chains that the kernel lists.
func (l *layout) usesOf(r *raw) (u uses) {
	for id, c := range r.chains {
		u.add(l, id, int(c.Use)+1)
	}
	return u
}

// change counts the changes that a plan makes to a chain. If a foreign rule jumps to a chain, the
// chain is flushed but not deleted.
func (u *uses) change(l *layout, x *chainChange, needed bool) {
	if !x.shared {
		n := len(x.after) - len(x.before)
		switch {
		case x.creates():
			n++
		case x.removes() && !needed:
			n--
		}

		u.add(l, x.id, n)
	}

	for i := range x.before {
		u.add(l, x.before[i].leads(x.id), -1)
	}
	for i := range x.after {
		u.add(l, x.after[i].leads(x.id), 1)
	}
}

// leads returns the chain to which a rule of a chain jumps or goes. The name is empty if there is
// no such chain.
func (r *rule) leads(from chainID) chainID { return from.table.chain(r.chain) }
