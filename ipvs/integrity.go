package ipvs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
)

// Integrity looks for one of our virtual servers, and whether the node's addresses, the device, the
// rule, the route and the sysctls are as they were. While the generation of the ruleset is the
// same, so are the companion tables. After another one, their version says whether a writer of ours
// was there; somebody's edit by hand shows only when the tables are read again, for which a
// neighbour that commits often gives cause all the time. So that is rationed, and Intact until it
// is due again.
func (b *Backend) Integrity(ctx context.Context) (dataplane.Integrity, error) {
	if !b.observed {
		return dataplane.Broken, nil
	}
	for _, look := range []func(context.Context) (bool, error){b.networkIntact, b.serverIntact,
		b.companionIntact} {
		intact, err := look(ctx)
		if err != nil {
			return dataplane.Broken, fmt.Errorf("ipvs: integrity: %w", err)
		}
		if !intact {
			return dataplane.Broken, nil
		}
	}
	return dataplane.Intact, nil
}

// networkIntact looks at addresses, if there was a notice about any, and at what leads packets
// here.
func (b *Backend) networkIntact(context.Context) (bool, error) {
	if b.net.changed() {
		found, err := b.net.addresses()
		if err != nil || !found.equal(&b.found) {
			return false, err
		}
	}
	if !b.settled { // nothing was committed yet
		return true, nil
	}
	return b.net.settled(b.sysctls.wanted)
}

// serverIntact looks for one of our virtual servers, any of them: what empties IPVS takes all.
func (b *Backend) serverIntact(ctx context.Context) (bool, error) {
	for k, s := range b.held {
		is, err := b.vs.Service(ctx, k)
		if errors.Is(err, ipvsnl.ErrNoService) {
			return false, nil
		}
		return is.Service == s.svc, err
	}
	return true, nil
}

// companionIntact looks at the generation, then at the version, and then, if it may, at all of the
// companion tables.
func (b *Backend) companionIntact(ctx context.Context) (bool, error) {
	gen, err := b.nf.GenID(ctx)
	if err != nil || gen.ID == b.gen {
		return err == nil, err
	}
	v, err := b.readVersion(ctx)
	if err != nil {
		return false, err
	}
	if v.exists != b.comp.version.exists || v.exists && v != b.comp.version {
		return false, nil
	}
	start := time.Now()
	if !b.looks.Allow(start) {
		return true, nil
	}
	is, drift, err := b.readCompanion(ctx)
	if readAgain(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	is.version = b.comp.version
	if len(drift) > 0 || !is.equal(b.expected()) {
		return false, nil
	}
	b.looks.Spend(time.Since(start)) // one that found something was worth its time
	b.gen = gen.ID
	return true, nil
}

// expected is what the companion tables should hold.
func (b *Backend) expected() *companion {
	c := b.comp
	c.rules = b.table.Rules()
	c.clusterIPs = slices.Collect(b.table.ClusterIPs())
	c.hairpins = slices.Collect(b.table.Hairpins())
	return &c
}
