package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
)

// Integrity looks whether the node's addresses, the device, the rules, the routes and the tunables
// are as they were, and compares our virtual servers with what is known of them: those of IPv4
// roughly, some in full, in turn. While the generation of the ruleset is the same, so are the
// companion tables. After another one, their version says whether a writer of ours was there;
// somebody's edit by hand shows only when the tables are read again, for which a neighbour that
// commits often gives cause all the time. So that is rationed, and Intact until it is due again. If
// virtual servers were deleted, in whatever namespace, it is Touched.
func (b *Backend) Integrity(ctx context.Context) (dataplane.Integrity, error) {
	if !b.observed {
		return dataplane.Broken, nil
	}
	for _, look := range []func(context.Context) (bool, error){b.networkIntact, b.serversIntact,
		b.companionIntact} {
		intact, err := look(ctx)
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			return dataplane.Broken, nil // others are at it: a reading that fails is tried again
		}
		if err != nil {
			return dataplane.Broken, fmt.Errorf("ipvs: integrity: %w", err)
		}
		if !intact {
			return dataplane.Broken, nil
		}
	}
	if b.kernel.references.fewer() {
		return dataplane.Touched, nil
	}
	return dataplane.Intact, nil
}

// networkIntact looks at addresses, if there was a notice about any, and, once a commit has put
// them right, at what leads packets to IPVS and at tunables. It takes two requests for the one, and
// a read of each sysctl for the other. Where packets are not delivered here although the rules and
// the routes are there, since a rule of somebody else comes first, nothing of ours is to be
// repaired.
func (b *Backend) networkIntact(ctx context.Context) (bool, error) {
	k, have := &b.kernel, &b.pl.have
	if k.changes.Look() {
		a, err := k.readAddresses()
		if err != nil || !a.equal(&have.addresses) {
			return false, err
		}
	}
	if len(have.unrouted) > 0 || !maps.Equal(have.tunables, b.pl.tunables) {
		return true, nil
	}
	now, err := k.readTunables(ctx, b.pl.tunables)
	if err != nil || !maps.Equal(now, have.tunables) {
		return false, err
	}
	if k.routed() {
		return true, nil
	}
	missing, err := k.readUnrouted()
	return len(missing) == 0, err
}

// serversIntact compares the outlines of all virtual servers when they are due, and the virtual
// servers whose turn it is: one at least, since what empties IPVS takes all. Each takes half of
// the share.
func (b *Backend) serversIntact(ctx context.Context) (bool, error) {
	have := b.pl.have.servers
	intact, err := b.kernel.outlines.intact(have, b.cfg.CompareShare/2)
	if err != nil || !intact {
		return false, err
	}
	b.scrub.begin(time.Now())
	for range have {
		intact, err := b.kernel.holds(ctx, b.scrub.current(have))
		if err != nil || !intact {
			return false, err
		}
		b.scrub.done()
		if !b.scrub.goOn(time.Now()) {
			break
		}
	}
	return true, nil
}

// holds reports whether the kernel has a virtual server with its destinations. Those of IPv4 are
// asked for their destinations only: all else of them is in the outlines.
func (k *kernel) holds(ctx context.Context, s *server) (bool, error) {
	if holds, known, err := k.outlines.holdsDests(s); known || err != nil {
		return holds, err
	}
	is, err := k.vs.Service(ctx, s.svc.ServiceKey)
	if errors.Is(err, ipvsnl.ErrNoService) {
		return false, nil
	}
	if err != nil || is.Service != s.svc {
		return false, err
	}
	lists, err := k.vs.AllDestinations(ctx, []ipvsnl.ServiceKey{s.svc.ServiceKey})
	if err != nil || len(lists[0]) != len(s.dests) {
		return false, err
	}
	for _, d := range lists[0] {
		if s.dests[d.DestinationKey] != d.Destination {
			return false, nil
		}
	}
	return true, nil
}

// companionIntact looks at the generation, then at the version, and then, if it may, at all of the
// companion tables.
func (b *Backend) companionIntact(ctx context.Context) (bool, error) {
	k, have := &b.kernel, &b.pl.have.companion
	gen, err := k.nf.GenID(ctx)
	if err != nil || gen.ID == k.gen {
		return err == nil, err
	}
	v, err := k.readVersion(ctx)
	if err != nil {
		return false, err
	}
	if v.exists != have.version.exists || v.exists && v != have.version {
		return false, nil
	}
	start := time.Now()
	if !b.looks.Allow(start) {
		return true, nil
	}
	is, drift, err := k.readCompanion(ctx)
	if interrupted(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	is.version = have.version
	if len(drift) > 0 || !is.equal(b.pl.have.expected()) {
		return false, nil
	}
	b.looks.Spend(time.Since(start)) // one that found something was worth its time
	k.gen = gen.ID
	return true, nil
}
