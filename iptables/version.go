package iptables

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
)

// The version of an instance. Each commit gives the instance another version, in the same
// transaction: it deletes the one that it knows, which must be there, and makes the next, which
// must not. So of two writers that know the same version one succeeds, and the kernel refuses
// the other's whole transaction with ENOENT, whatever anybody else commits in between. And
// whoever finds the version that he left there knows that no other writer of the instance was
// there since.
//
// A version is an empty chain of table nat of IPv4, where every instance has its settings:
// KUBE-VERSION-1a2b3c4d. The kernel finds a chain by its name, so that the number is part of
// what is compared; a rule would have to be deleted by its handle, and handles begin anew with a
// table that is made anew. iptables shows the chain, saves it and restores it, kube-proxy and
// kubelet do not look at it. Numbers are drawn at random for each commit rather than counted:
// who restores rules of last week restores the version of last week, and counting on from there
// would repeat versions that other writers may still know.

// kindVersion is the second part of the names of versions.
const kindVersion = "VERSION"

// version returns the name of the chain that is a version.
func (n names) version(v uint32) string {
	return fmt.Sprintf("%s-%s-%08x", n.prefix, kindVersion, v)
}

// parseVersion is the inverse of version.
func (n names) parseVersion(chain string) (uint32, bool) {
	rest, ok := strings.CutPrefix(chain, n.prefix+"-"+kindVersion+"-")
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseUint(rest, 16, 32)
	return uint32(v), err == nil && n.version(uint32(v)) == chain
}

// newVersion returns a version that hardly anybody knows.
func newVersion() uint32 { return rand.Uint32() }

// versionsOf returns the versions that are there, in order. There should be one; there are more
// after rules were restored without the others being flushed.
func (l *layout) versionsOf(r *raw) []uint32 {
	var versions []uint32
	for name := range r.tables[0][nat].chains {
		if v, ok := l.names.parseVersion(name); ok {
			versions = append(versions, v)
		}
	}
	slices.Sort(versions)
	return versions
}

// versionID is the identity of the chain that is a version.
func (l *layout) versionID(v uint32) chainID { return chainID{0, nat, l.names.version(v)} }

// renewal is what a plan does to the version.
type renewal struct {
	gone []uint32 // that must be there
	next uint32   // that must not, if made
	made bool
}

// renew gives an instance that will have rules, or will not, another version.
func (k *kernelState) renew(present bool) *renewal {
	return &renewal{gone: k.versions, next: k.nextVersion, made: present}
}

// encodeVersion comes first in a transaction, so that the error of a writer that is late tells
// why.
func (e *encoder) encodeVersion(r *renewal, l *layout) {
	table := e.of(l.versionID(0))
	for _, v := range r.gone {
		table.DeleteUnusedChain(l.names.version(v))
	}
	if r.made {
		table.CreateChain(&nft.Chain{Name: l.names.version(r.next)})
	}
}
