package ipvs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/nft"
)

// version is the version of an instance: the one element of the set "version" of its companion
// table of the family ip. Every commit deletes it and adds the next one in the same transaction, so
// that the transaction of a second writer, who wants to delete the same, fails as a whole.
//
// IPVS has no transactions. A commit that sends commands to it first adds a version with the
// comment "writing", sends them, and then adds one without. Who finds such a version knows that the
// commands of somebody are under way, or that a writer died. It reads what is there, and takes over
// by replacing the version; if the first writer still lives, its last transaction fails, and it
// begins again.
type version struct {
	number  uint32
	exists  bool // else it is the number that the first one follows
	writing bool
}

const (
	setVersion     = "version"
	commentWriting = "writing"
)

// versionSet is the set that holds the version.
var versionSet = &nft.Set{Name: setVersion, Key: []nft.Field{nft.FieldMark}}

// errTaken says that another writer was there.
var errTaken = errors.New("another writer was there")

// newVersion returns the version of an instance that has none. The number is random, so that an
// instance that is removed and made again does not repeat those that somebody remembers.
func newVersion() version { return version{number: rand.Uint32()} }

// next is the version that follows.
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

// replace plans that a version is replaced by another.
func (tp *tablePlan) replace(from, to version) {
	if from.exists {
		tp.sink(tp.del)(setVersion, nft.Elem{Key: nft.Native32(from.number)})
	}
	tp.sink(tp.add)(setVersion, to.elem())
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

// readVersion reads the version; one that does not exist if there is none, or nothing that could be
// one.
func (b *Backend) readVersion(ctx context.Context) (version, error) {
	elems, err := b.readElements(ctx, nft.IPv4, b.cfg.Table, setVersion)
	if errors.Is(err, syscall.ENOENT) {
		return version{}, nil
	}
	if err != nil {
		return version{}, fmt.Errorf("read the version: %w", err)
	}
	if v, err := versionOf(elems); err == nil {
		return v, nil
	}
	return version{}, nil
}

// A writer that lives is waited for. A commit of a few changes takes a few milliseconds.
const (
	writerPatience = 50 * time.Millisecond
	writerPause    = 2 * time.Millisecond
)

// settledVersion reads the version, and gives a writer that is at work time to end.
func (b *Backend) settledVersion(ctx context.Context) (version, error) {
	for end := time.Now().Add(writerPatience); ; {
		v, err := b.readVersion(ctx)
		if err != nil || !v.writing || time.Now().After(end) {
			return v, err
		}
		if err := pause(ctx, writerPause); err != nil {
			return version{}, err
		}
	}
}

// requireVersion fails if the version is not the one that was read or written last.
func (b *Backend) requireVersion(ctx context.Context) error {
	v, err := b.readVersion(ctx)
	if err == nil && v != b.comp.version {
		err = errTaken
	}
	return err
}

// claimTries bounds how often a first transaction is sent again because of those of others.
const claimTries = 20

// claim commits a transaction that gives an instance its first version. Since there is none yet
// that two writers could contend for, it depends on the generation of the ruleset, read just
// before: a transaction of anybody in between makes it look again.
func (b *Backend) claim(ctx context.Context) error {
	var err error
	for range claimTries {
		gen, genErr := b.nf.GenID(ctx)
		if genErr != nil {
			return genErr
		}
		v, readErr := b.readVersion(ctx)
		if readErr != nil {
			return readErr
		}
		if v.exists {
			return errTaken
		}
		if err = b.nf.Commit(ctx, &b.batch, gen.ID); !errors.Is(err, nfnl.ErrGenerationChanged) {
			return err
		}
	}
	return err
}

// pause waits for a time, or for the end of the context.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
