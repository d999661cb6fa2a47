package iptables

import (
	"context"
	"errors"
	"fmt"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// versionTries bounds the tries of giveVersion.
const versionTries = 20

// giveVersion gives a version to an instance without one, for example after "iptables -X". Two
// writers that do so at the same time have no version to contend for. So only this transaction
// requires that the generation of the ruleset has not changed.
func (b *backend) giveVersion(ctx context.Context) error {
	k := &b.kernel
	for range versionTries {
		gen, err := k.conn.GenID(ctx)
		if err != nil {
			return err
		}
		none, err := k.stillAt(ctx, b.l, nil)
		if err != nil {
			return err
		}
		if !none {
			return fmt.Errorf("the instance has a version by now: %w", dataplane.ErrConflict)
		}
		b.found.nextVersion = newVersion()
		r := b.l.renew(&b.found, homeOf(&b.state.rules), true)
		k.batch.Reset()
		newEncoder(&k.batch).encodeVersion(r)
		err = k.conn.Commit(ctx, &k.batch, gen.ID)
		if err == nil {
			b.found.versions = []chainID{r.next}
			return nil
		}
		if !errors.Is(err, rawnl.ErrGenerationChanged) {
			return err
		}
	}
	return fmt.Errorf("the ruleset keeps changing: %w", dataplane.ErrConflict)
}
