package iptables

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
)

// The version of an instance. Each commit gives the instance another version in the same
// transaction: it deletes the version that it knows, which must exist, and makes the next, which
// must not. If two writers know the same version, one succeeds. The kernel refuses the other's
// whole transaction with ENOENT, whatever other programs commit in between. A writer that finds the
// version that it left there knows that no other writer of the instance has committed since.
//
// A version is an empty chain in the IPv4 table nat, where every instance has its settings:
// KUBE-VERSION-1a2b3c4d. The kernel finds a chain by its name, so the number is part of the
// comparison. A rule would not do: it is deleted by its handle, and handles begin anew with a new
// table. iptables shows the chain, saves it and restores it. kube-proxy and kubelet ignore it. The
// number is drawn at random for each commit and not counted. If someone restores last week's rules,
// the version of last week comes back. Counting on from there would repeat versions that other
// writers may still know.

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

// newVersion returns a random version, which hardly any other writer knows.
func newVersion() uint32 { return rand.Uint32() }

// versionsOf returns the versions that exist, in order. There should be one. There are more if
// rules were restored without flushing the others. The kernel does not delete a chain that has a
// rule or to which a rule leads. Such a chain is no version any more: it is surplus, and the
// instance gets another version.
func (l *layout) versionsOf(r *raw) []uint32 {
	var versions []uint32
	for name, c := range r.tables[nat4].chains {
		if v, ok := l.names.parseVersion(name); ok && c.Use == 0 {
			versions = append(versions, v)
		}
	}
	slices.Sort(versions)
	return versions
}

// isVersion reports whether a chain is a version, or was one.
func (l *layout) isVersion(id chainID) bool {
	_, ok := l.names.parseVersion(id.name)
	return ok && id.table == nat4
}

// versionID is the identity of a version's chain.
func (l *layout) versionID(v uint32) chainID { return nat4.chain(l.names.version(v)) }

// renewal is the change of the version in a plan.
type renewal struct {
	gone []uint32 // versions that must exist
	next uint32   // the version that must not exist, if made is set
	made bool
}

// renew returns the renewal of the version. present says whether the instance will have rules.
func (k *kernelState) renew(present bool) *renewal {
	return &renewal{gone: k.versions, next: k.nextVersion, made: present}
}

// encodeVersion appends the version's messages. They come first in a transaction, so that a late
// writer's error tells the reason.
func (e *encoder) encodeVersion(r *renewal, l *layout) {
	table := e.of(l.versionID(0))
	for _, v := range r.gone {
		table.DeleteUnusedChain(l.names.version(v))
	}
	if r.made {
		table.CreateChain(&nft.Chain{Name: l.names.version(r.next)})
	}
}
