package ipvs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nft"
)

// Integrity checks whether the node's addresses, the device, the rules, the routes and the tunables
// are unchanged. It also compares our virtual servers with the known ones: all IPv4 virtual servers
// roughly, and some in full, in turn. The companion tables are unchanged as long as the ruleset has
// the same generation. If the generation is new, their version reveals whether another writer of
// the instance committed. A manual edit is found only when the tables are read again. Another
// program that commits often would cause such readings all the time. So they are rate-limited, and
// until the next reading is due, Integrity returns Intact. If virtual servers were deleted, in any
// namespace, it returns Touched.
func (b *backend) Integrity(ctx context.Context) (backends.Integrity, error) {
	if !b.observed {
		return backends.Broken, nil
	}
	for _, look := range []func(context.Context) (bool, error){b.networkIntact, b.serversIntact,
		b.companionIntact} {
		intact, err := look(ctx)
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			// other writers are at work: a reading that fails is tried again
			return backends.Broken, nil
		}

		if err != nil {
			return backends.Broken, fmt.Errorf("ipvs: integrity: %w", kernelerr.Permission(err))
		}
		if !intact {
			return backends.Broken, nil
		}
	}

	if b.kernel.references.fewer() {
		return backends.Touched, nil
	}
	return backends.Intact, nil
}

// networkIntact checks addresses if the kernel reported a change of any address. If the rules, the
// routes and the tunables were right before, it checks them again: tunables with one read of each
// sysctl, and rules and routes with two requests. If packets are not delivered to this machine
// although the rules and the routes exist, another program's rule precedes ours, and there is
// nothing of ours to repair.
func (b *backend) networkIntact(ctx context.Context) (bool, error) {
	k, have := &b.kernel, &b.pl.have
	if k.changes.Look() {
		a, err := k.readAddresses()
		if err != nil {
			return false, err
		}
		if !a.equal(&have.addresses) {
			k.changes.Suspect() // so that each check finds it, until there is a reading
			return false, nil
		}
	}

	ipv6, binds, err := k.readIPv6()
	if err != nil || ipv6 != have.ipv6 || binds != have.binds6 {
		return false, err
	}
	if len(have.routingDrift()) > 0 || !maps.Equal(have.tunables.Now, b.pl.tunables) {
		return true, nil
	}
	if hold, err := k.tunables.Hold(ctx, b.pl.tunables); err != nil || !hold {
		return false, err
	}
	rules := have.rules()
	for i, f := range nft.Families {
		if !have.leads(f, &rules) || k.routed(i) {
			continue
		}
		missing, _, err := k.readRouting(have.ipv6)
		if err != nil || len(missing[i]) > 0 {
			return false, err
		}
	}

	return true, nil
}

// serversIntact compares the outlines of all virtual servers when they are due, and the virtual
// servers whose turn it is. It compares at least one virtual server in full, so that it notices if
// all virtual servers were deleted. Each of the two comparisons takes half of the share.
func (b *backend) serversIntact(ctx context.Context) (bool, error) {
	have := b.pl.have.servers
	intact, err := b.kernel.outlines.intact(have, b.cfg.CompareShare/2)
	if err != nil || !intact {
		return false, err
	}
	return b.scrub.each(have, func(s *server) (bool, error) { return b.kernel.holds(ctx, s) })
}

// holds reports whether a virtual server with its destinations is in the kernel. For IPv4, it
// requests only the destinations, because the outlines cover the rest.
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
	dests, err := k.vs.DestinationsIf(ctx, s.svc.ServiceKey)
	if err != nil || len(dests) != len(s.dests) {
		return false, err
	}
	for _, d := range dests {
		if s.dests[d.DestinationKey] != d.Destination {
			return false, nil
		}
	}

	return true, nil
}

// companionIntact checks the generation, then the version, and then, if the budget allows it, all
// of the companion tables.
func (b *backend) companionIntact(ctx context.Context) (bool, error) {
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
	b.looks.Spend(time.Since(start)) // a check that found something is not charged
	k.gen = gen.ID
	return true, nil
}

// references is the number of references to the kernel's module ip_vs. Each virtual server has a
// reference, in any family and namespace (ip_vs_add_service, ip_vs_use_count_inc). So reading one
// file reveals deletions. The modules of schedulers also have references, and so does a dump while
// it lasts.
type references struct {
	file  string
	known int // the number when the virtual servers were last known
}

// referencesFile has the number. It does not exist if IPVS is built into the kernel.
const referencesFile = modulesFolder + "/ip_vs/refcnt"

const modulesFolder = "/sys/module"

// read returns the number, or 0 if it is not known.
func (r *references) read() int {
	b, err := os.ReadFile(r.file)
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(string(bytes.TrimSpace(b)))
	return n
}

// fewer reports whether there are fewer references than before, and records the new number.
// Additional references are not ours.
func (r *references) fewer() bool {
	before := r.known
	r.known = r.read()
	return 0 < r.known && r.known < before
}

// sent adjusts the known number by the effect of commands.
func (r *references) sent(ops []ipvsnl.Op) {
	for _, o := range ops {
		switch o.Command {
		case ipvsnl.CommandNewService:
			r.known++
		case ipvsnl.CommandDelService:
			r.known--
		}
	}
}
