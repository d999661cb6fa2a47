package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// interrupted reports whether a reading failed because other programs changed the objects during
// it.
func interrupted(err error) bool {
	// nfnetlink returns EINVAL while another process makes the kernel load nf_tables, and also if
	// there is no such module. ENOENT means that a table vanished during the reading, or, for a
	// file, that the kernel has no such sysctl.
	return !errors.As(err, new(*fs.PathError)) && isOne(err, errTaken, errMisread,
		rawnl.ErrDumpInterrupted, netlink.ErrDumpInterrupted, syscall.ENOENT, syscall.EINVAL)
}

// isOne reports whether an error matches one of several.
func isOne(err error, of ...error) bool {
	return slices.ContainsFunc(of, func(e error) bool { return errors.Is(err, e) })
}

// read reads everything about the instance. drift lists the faults of the companion tables. read
// fails with errTaken if another writer of the instance commits during the reading. tunables are
// the desired sysctls. was is what this process knows about them.
func (k *kernel) read(ctx context.Context, tunables map[string]string, was sysctls.State) (
	o observed, drift []string, err error) {
	before, err := k.readIdleVersion(ctx)
	if err != nil {
		return o, nil, err
	}
	gen, err := k.nf.GenID(ctx)
	if err != nil {
		return o, nil, err
	}
	if o.companion, drift, err = k.readCompanion(ctx); err != nil {
		return o, nil, err
	}
	if err := k.readServers(ctx, &o); err != nil {
		return o, nil, err
	}
	if err := k.readNetwork(&o); err != nil {
		return o, nil, err
	}
	o.tunables = was.Read(o.companion.tunables, false)
	if err := k.tunables.Look(ctx, &o.tunables, tunables); err != nil {
		return o, nil, err
	}
	if err := k.requireVersion(ctx, before); err != nil {
		return o, nil, err
	}
	k.gen = gen.ID
	if before.writing {
		drift = append(drift, "a commit was begun and has not ended")
	}
	o.companion.version = before
	if !before.exists {
		o.companion.version = newVersion()
	}
	return o, drift, nil
}

// readCompanion reads the companion tables without the version. drift lists their faults.
func (k *kernel) readCompanion(ctx context.Context) (c companion, drift []string, err error) {
	var raws [2]*rawTable
	for i, f := range nft.Families {
		if raws[i], err = k.readTable(ctx, f); err != nil {
			return companion{}, nil, err
		}
	}

	c, drift = companionOf(k.table, k.mark, raws)
	return c, drift, nil
}

// readServers reads all virtual servers. It reads the destinations of our virtual servers and of
// virtual servers that a service may take over. Only virtual servers at an address can be taken
// over, because their owner defines the meaning of a mark.
func (k *kernel) readServers(ctx context.Context, o *observed) error {
	k.references.fewer() // later deletions will show
	all, err := k.vs.Services(ctx)
	if err != nil {
		return err
	}
	o.servers, o.foreign = map[ipvsnl.ServiceKey]*server{}, map[ipvsnl.ServiceKey]bool{}
	o.claimable = map[ipvsnl.ServiceKey]*server{}
	for _, s := range all {
		is := &server{svc: s.Service, proto: servicemodel.Protocol(s.Protocol),
			dests: map[ipvsnl.DestinationKey]ipvsnl.Destination{}}
		switch instance := uint32(s.Flags) & instanceMask; {
		case instance == k.instance:
			o.servers[s.ServiceKey] = is
		case k.takeOver && instance == 0 && s.FWMark == 0:
			o.claimable[s.ServiceKey], o.foreign[s.ServiceKey] = is, true
		default:
			o.foreign[s.ServiceKey] = true
			continue
		}

		dests, err := k.vs.DestinationsIf(ctx, s.ServiceKey)
		if err != nil {
			return err
		}
		for _, d := range dests {
			is.dests[d.DestinationKey] = d.Destination
		}
	}

	return nil
}

// readNetwork reads addresses, devices, rules and routes.
func (k *kernel) readNetwork(o *observed) error {
	var errs [4]error
	o.addresses, errs[0] = k.readAddresses()
	o.devices, errs[1] = k.readDevices()
	o.ipv6, o.binds6, errs[2] = k.readIPv6()
	o.unrouted, o.routed, errs[3] = k.readRouting(o.ipv6)
	return cmp.Or(errs[:]...)
}

// errMisread says that a dump showed an element twice: the kernel was rebuilding the set's hash
// table, and the dump may lack elements.
var errMisread = errors.New("the dump showed an element twice")

// readTable reads a companion table. It returns nil if the table does not exist. The result is
// right if no program changed the table during the reading.
func (k *kernel) readTable(ctx context.Context, f *nft.Family) (*rawTable, error) {
	raw := &rawTable{sets: map[string]nft.SetInfo{}, chains: map[string]nft.ChainInfo{},
		rules: map[string][]uint64{}, elems: map[string]map[string]nft.Elem{}}
	q := nft.Query{Conn: k.nf, Family: f, Table: k.table}
	var exists bool
	var err error
	if raw.TableInfo, exists, err = q.Info(ctx); err != nil || !exists {
		return nil, err
	}
	if err := q.Sets(ctx, func(s nft.SetInfo) { raw.sets[s.Name] = s }); err != nil {
		return nil, err
	}
	err = q.Chains(ctx, chainNames(shapeOf(raw)),
		func(c nft.ChainInfo) { raw.chains[c.Name] = c })
	if err != nil {
		return nil, err
	}
	err = q.Rules(ctx, "", func(r nft.RuleInfo) error {
		chain := string(r.Chain)
		raw.rules[chain] = append(raw.rules[chain], r.Hash())
		return nil
	})
	if err != nil {
		return nil, err
	}
	for name, s := range raw.sets {
		if s.Count == 0 {
			continue
		}
		if raw.elems[name], err = readElements(ctx, q, name); err != nil {
			return nil, err
		}
	}

	return raw, nil
}

// readElements reads the elements of a set, by key and end of range.
func readElements(ctx context.Context, q nft.Query, set string) (map[string]nft.Elem, error) {
	elems := map[string]nft.Elem{}
	return elems, q.Elements(ctx, set, collect(elems))
}

// collect returns a function that adds elements to a set, each once.
func collect(to map[string]nft.Elem) func(nft.Elem) error {
	return func(e nft.Elem) error {
		key := string(e.Key) + string(e.KeyEnd)
		if _, twice := to[key]; twice {
			return fmt.Errorf("element %x: %w", e.Key, errMisread)
		}
		to[key] = e.Clone()
		return nil
	}
}

// readVersion reads the version. It does not exist if the set does not exist, or has no valid
// element.
func (k *kernel) readVersion(ctx context.Context) (version, error) {
	elems, err := readElements(ctx, nft.Query{Conn: k.nf, Family: nft.IPv4, Table: k.table},
		setVersion)
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

// The times that readIdleVersion waits for a writer that is alive. A commit of a few changes takes
// a few milliseconds.
const (
	writerPatience = 50 * time.Millisecond
	writerPause    = 2 * time.Millisecond
)

// readIdleVersion reads the version. If a writer is at work, it first waits some time for the
// writer to finish.
func (k *kernel) readIdleVersion(ctx context.Context) (version, error) {
	for end := time.Now().Add(writerPatience); ; {
		v, err := k.readVersion(ctx)
		if err != nil || !v.writing || time.Now().After(end) {
			return v, err
		}
		if err := wait.For(ctx, writerPause); err != nil {
			return version{}, err
		}
	}
}

// requireVersion fails if the current version is not v.
func (k *kernel) requireVersion(ctx context.Context, v version) error {
	now, err := k.readVersion(ctx)
	if err == nil && now != v {
		err = errTaken
	}
	return err
}
