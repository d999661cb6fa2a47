package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

const observeTries = 8

// Observe reads the companion tables and the virtual servers of the instance. What others commit to
// nf_tables meanwhile does not matter; if another writer of the instance does, it reads again.
func (b *Backend) Observe(ctx context.Context, _ *servicemodel.Table) (*dataplane.Observation,
	error) {
	b.observed = false
	var err error
	for try := range observeTries {
		if err := pause(ctx, time.Duration(try*try)*5*time.Millisecond); err != nil {
			return nil, err
		}
		var o *dataplane.Observation
		if o, err = b.observe(ctx); err == nil {
			return o, nil
		}
		if !readAgain(err) {
			return nil, fmt.Errorf("ipvs: observe: %w", err)
		}
	}
	if errors.Is(err, syscall.EINVAL) {
		return nil, fmt.Errorf("ipvs: observe: tried %d times: %w", observeTries, err)
	}
	return nil, fmt.Errorf("ipvs: observe: tried %d times: %w: %w", observeTries,
		dataplane.ErrConflict, err)
}

// readAgain reports whether what could not be read may be readable a moment later.
func readAgain(err error) bool {
	// nfnetlink says EINVAL where there is no nf_tables, and while its module is being loaded for
	// somebody else; ENOENT is a table that went while it was being read.
	for _, e := range []error{errTaken, errMisread, nfnl.ErrDumpInterrupted,
		ipvsnl.ErrDumpInterrupted, syscall.ENOENT, syscall.EINVAL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (b *Backend) observe(ctx context.Context) (*dataplane.Observation, error) {
	before, err := b.settledVersion(ctx)
	if err != nil {
		return nil, err
	}
	gen, err := b.nf.GenID(ctx)
	if err != nil {
		return nil, err
	}
	comp, drift, err := b.readCompanion(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.readServers(ctx); err != nil {
		return nil, err
	}
	if err := b.readNetwork(ctx, &comp); err != nil {
		return nil, err
	}
	after, err := b.readVersion(ctx)
	if err == nil && after != before {
		err = errTaken
	}
	if err != nil {
		return nil, err
	}
	b.gen, b.comp = gen.ID, comp
	if b.comp.version = before; !before.exists {
		b.comp.version = newVersion()
	}
	o := &dataplane.Observation{Drift: drift}
	if before.writing {
		o.Drift = append(o.Drift, "a commit was begun and has not ended")
	}
	return b.adopt(o)
}

// readCompanion reads the companion tables, and says in what they are not as they should be. It
// does not read the version.
func (b *Backend) readCompanion(ctx context.Context) (c companion, drift []string, err error) {
	var raws [2]*rawTable
	for i, f := range nft.Families {
		if raws[i], err = b.readTable(ctx, f); err != nil {
			return companion{}, nil, err
		}
	}
	c, drift = interpret(b.cfg.Table, raws)
	return c, drift, nil
}

// readServers reads all virtual servers, and the destinations of ours.
func (b *Backend) readServers(ctx context.Context) error {
	all, err := b.vs.Services(ctx)
	if err != nil {
		return err
	}
	b.held, b.foreign = map[ipvsnl.ServiceKey]*server{}, map[ipvsnl.ServiceKey]bool{}
	var keys []ipvsnl.ServiceKey
	for _, s := range all {
		if uint32(s.Flags)&instanceMask != b.instance {
			b.foreign[s.ServiceKey] = true
			continue
		}
		keys = append(keys, s.ServiceKey)
		b.held[s.ServiceKey] = &server{svc: s.Service, proto: servicemodel.Protocol(s.Protocol),
			dests: map[ipvsnl.DestinationKey]ipvsnl.Destination{}}
	}
	dests, err := b.vs.AllDestinations(ctx, keys)
	if err != nil {
		return err
	}
	for i, k := range keys {
		for _, d := range dests[i] {
			b.held[k].dests[d.DestinationKey] = d.Destination
		}
	}
	return nil
}

// readNetwork reads the addresses, and what sysctls are. What those were that the companion does
// not record, other instances may have recorded, or this process, if somebody has deleted the
// table.
func (b *Backend) readNetwork(ctx context.Context, comp *companion) error {
	found, err := b.net.addresses()
	if err != nil {
		return err
	}
	b.found = *found
	if b.sysctls.now, err = b.net.readSysctls(b.sysctls.wanted); err != nil {
		return err
	}
	b.sysctls.before = nil
	for name := range b.sysctls.wanted {
		if _, known := comp.sysctls[name]; !known {
			b.sysctls.before, err = b.othersSysctls(ctx)
			break
		}
	}
	if b.sysctls.before != nil {
		maps.Copy(b.sysctls.before, b.comp.sysctls)
	}
	return err
}
