package ipvs

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/kernlb/kernlb/internal/nft"
)

// version is the version of an instance: the only element of the set "version" in its companion
// table of the family ip. Every commit deletes this element and adds the next one in the same
// transaction. A second writer's transaction would delete the same element, and so fails as a
// whole. (The nftables backend deletes nothing for its version, so that a process that publishes
// something does not have to wait for an RCU grace period when it ends. A process of this backend
// reads everything anyway, and sends commands between two transactions.)
//
// IPVS has no transactions. A commit that sends commands to IPVS first adds a version with the
// comment "writing", then sends the commands, and then adds a version without the comment. A
// program that finds the comment knows that another writer is still sending commands, or has died.
// It reads everything, and takes over by replacing the version. If the first writer is still alive,
// its last transaction fails, and it starts over.
type version struct {
	number  uint32
	exists  bool // otherwise number precedes the first version
	writing bool
}

const (
	setVersion     = "version"
	commentWriting = "writing"
)

// versionSet is the set with the version.
var versionSet = &nft.Set{Name: setVersion, Key: []nft.Field{nft.FieldMark}}

// errTaken says that another writer has committed.
var errTaken = errors.New("another writer was there")

// newVersion returns the version of an instance that has no version yet. The number is random, so
// that an instance that is removed and created again does not repeat versions that another writer
// remembers.
func newVersion() version { return version{number: rand.Uint32()} }

func (v version) next(writing bool) version {
	return version{number: v.number + 1, exists: true, writing: writing}
}

func (v version) elem() nft.Elem {
	e := nft.Elem{Key: nft.Native32(v.number)}
	if v.writing {
		e.UserData = nft.AppendComment(nil, commentWriting)
	}
	return e
}

// replace plans that the version to replaces the version from.
func (tp *tablePlan) replace(from, to version) {
	if from.exists {
		tp.del.put(setVersion, nft.Elem{Key: nft.Native32(from.number)})
	}
	tp.add.put(setVersion, to.elem())
}

// versionOf finds the version among the elements of its set.
func versionOf(elems map[string]nft.Elem) (version, error) {
	if len(elems) != 1 {
		return version{}, fmt.Errorf("set %s has %d elements, want 1", setVersion, len(elems))
	}
	v := version{exists: true}
	for key, e := range elems {
		r := nft.Reader{Bytes: []byte(key)}
		v.number = r.Native()
		if !r.Done() {
			return version{}, fmt.Errorf("set %s: a key of %d bytes", setVersion, len(key))
		}
		v.writing = nft.CommentOf(e.UserData) == commentWriting
	}

	return v, nil
}
