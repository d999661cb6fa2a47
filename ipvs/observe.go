package ipvs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/nftwire"
	"github.com/kernlb/kernlb/internal/settings"
	"github.com/kernlb/kernlb/servicemodel"
)

const observeTries = 8

// Observe reads the companion tables and the virtual servers of the instance.
func (b *Backend) Observe(ctx context.Context, _ *servicemodel.Table) (*dataplane.Observation, error) {
	b.observed = false
	var err error
	for try := range observeTries {
		if try > 0 {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-time.After(time.Duration(try*try) * 5 * time.Millisecond):
			}
		}
		var o *dataplane.Observation
		if o, err = b.observe(ctx); err == nil {
			return o, nil
		}
		// nfnetlink says EINVAL where there is no nf_tables, and while its module is being loaded for somebody else.
		if !errors.Is(err, nfnl.ErrDumpInterrupted) && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.EINVAL) {
			return nil, fmt.Errorf("ipvs: observe: %w", err)
		}
	}
	if errors.Is(err, syscall.EINVAL) {
		return nil, fmt.Errorf("ipvs: observe: tried %d times: %w", observeTries, err)
	}
	return nil, fmt.Errorf("ipvs: observe: tried %d times: %w: %w", observeTries, dataplane.ErrConflict, err)
}

// rawTable is what was read of a companion table.
type rawTable struct {
	rules map[string][]uint64 // hashes by chain
	elems map[string]map[string]nftwire.Elem
}

func (b *Backend) observe(ctx context.Context) (*dataplane.Observation, error) {
	gen, err := b.nf.GenID(ctx)
	if err != nil {
		return nil, err
	}
	o := &dataplane.Observation{}
	var raws [2]*rawTable
	for i, f := range nftwire.Families {
		if raws[i], err = b.readTable(ctx, f); err != nil {
			return nil, err
		}
	}
	after, err := b.nf.GenID(ctx)
	if err == nil && after.ID != gen.ID {
		err = nfnl.ErrDumpInterrupted
	}
	if err != nil {
		return nil, err
	}
	b.gen = gen.ID
	if err := b.readServers(ctx); err != nil {
		return nil, err
	}
	found, err := b.net.addresses()
	if err != nil {
		return nil, err
	}
	b.found = *found
	c := servicemodel.Contents{}
	known := b.sysctls
	b.records, b.sysctls, b.addrs = map[servicemodel.FrontendKey]*record{}, map[string]string{}, nil
	for i, f := range nftwire.Families {
		b.exists[i], b.whole[i] = raws[i] != nil, false
		if raws[i] == nil {
			continue
		}
		rules, err := b.readSettings(raws[i])
		if err == nil && c.Rules.MasqueradeMark != 0 && !c.Rules.Equal(rules) {
			err = errors.New("it was made for other settings")
		}
		if err == nil {
			c.Rules = rules
			err = b.interpret(f, raws[i], rules, &c)
		}
		if err != nil {
			o.Drift = append(o.Drift, fmt.Sprintf("table %s %s: %v", f.Name, b.cfg.Table, err))
			continue
		}
		b.whole[i] = true
	}
	if b.exists[0] != b.exists[1] {
		o.Drift = append(o.Drift, "a companion table is missing")
	}
	slices.SortFunc(b.addrs, netip.Addr.Compare)
	// What a commit that failed has set is not in the tables yet.
	for name, v := range known {
		if _, ok := b.sysctls[name]; !ok {
			b.sysctls[name], b.whole = v, [2]bool{}
		}
	}
	return b.adopt(o, c)
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
		b.held[s.ServiceKey] = &server{svc: s.Service, proto: servicemodel.Protocol(s.Protocol), dests: map[ipvsnl.DestinationKey]ipvsnl.Destination{}}
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

func (b *Backend) readSettings(raw *rawTable) (servicemodel.Rules, error) {
	elems := raw.elems[setSettings]
	lines := make([]string, len(elems))
	for k, e := range elems {
		r := nftwire.Reader{Bytes: []byte(k)}
		n := int(r.Native())
		if n < 1 || n > len(lines) {
			return servicemodel.Rules{}, errors.New("settings are not numbered")
		}
		lines[n-1] = nftwire.CommentOf(e.UserData)
	}
	var rest []string
	for _, l := range lines {
		if v, ok := strings.CutPrefix(l, settingSysctl+" "); ok {
			name, value, _ := strings.Cut(v, " ")
			b.sysctls[name] = value
			continue
		}
		rest = append(rest, l)
	}
	r, err := settings.Parse(rest)
	if err == nil && r.MasqueradeMark == 0 {
		err = errors.New("settings are missing")
	}
	return r, err
}

// interpret makes records of the registries, and requires that all else is what follows from them.
func (b *Backend) interpret(f *nftwire.Family, raw *rawTable, rules servicemodel.Rules, c *servicemodel.Contents) error {
	if err := requireProgram(f, raw, rules); err != nil {
		return err
	}
	var records []*record
	want := map[string]map[string]nftwire.Elem{}
	for _, s := range setsOf(f) {
		if raw.elems[s.Name] == nil {
			return fmt.Errorf("set %s is missing", s.Name)
		}
		want[s.Name] = map[string]nftwire.Elem{}
	}
	sources := b.readSources(f, raw)
	for _, kind := range kinds {
		for key, e := range raw.elems[kind+"s"] {
			rd := nftwire.Reader{Bytes: []byte(key)}
			k := rd.Frontend(f.Any, kind == kindNodePort)
			if !rd.Done() {
				return fmt.Errorf("set %ss: a key of %d bytes", kind, len(key))
			}
			r, err := parseRecord(nftwire.CommentOf(e.UserData), k)
			if err != nil {
				return err
			}
			if r.fe.Sources != nil {
				r.fe.Sources = sources[k]
			}
			records = append(records, r)
			r.elements(func(set string, e nftwire.Elem) { want[set][string(e.Key)+string(e.KeyEnd)] = e })
		}
	}
	for _, s := range []string{setClusterIPs, setHairpins, setNodeAddrs} {
		for key := range raw.elems[s] {
			a, ok := netip.AddrFromSlice([]byte(key)[:f.AddrLen])
			if !ok {
				return fmt.Errorf("set %s: a key of %d bytes", s, len(key))
			}
			want[s][key] = nftwire.Elem{}
			switch s {
			case setClusterIPs:
				c.ClusterIPs = append(c.ClusterIPs, a)
			case setHairpins:
				c.Hairpins = append(c.Hairpins, a)
			case setNodeAddrs:
				b.addrs = append(b.addrs, a)
			}
		}
	}
	want[setSettings] = raw.elems[setSettings]
	for name, elems := range want {
		if len(elems) != len(raw.elems[name]) {
			return fmt.Errorf("set %s has %d elements, want %d", name, len(raw.elems[name]), len(elems))
		}
		for k, e := range elems {
			have, ok := raw.elems[name][k]
			if !ok || e.Data != nil && !bytes.Equal(e.Data, have.Data) {
				return fmt.Errorf("set %s is not as it should be", name)
			}
		}
	}
	for _, r := range records {
		b.records[r.fe.Key] = r
	}
	return nil
}

// requireProgram requires that the rules are those of the settings.
func requireProgram(f *nftwire.Family, raw *rawTable, rules servicemodel.Rules) error {
	for _, ch := range newProgram(f, rules) {
		if !slices.Equal(ch.Hashes(), raw.rules[ch.Name]) {
			return fmt.Errorf("chain %s is not as it should be", ch.Name)
		}
	}
	return nil
}

// readSources reads the source ranges of frontends.
func (b *Backend) readSources(f *nftwire.Family, raw *rawTable) map[servicemodel.FrontendKey][]netip.Prefix {
	m := map[servicemodel.FrontendKey][]netip.Prefix{}
	for _, e := range raw.elems[setSources] {
		first, last := nftwire.Reader{Bytes: e.Key}, nftwire.Reader{Bytes: e.KeyEnd}
		k := first.Frontend(f.Any, false)
		last.Frontend(f.Any, false)
		if p, ok := nftwire.RangePrefix(first.Addr(f.AddrLen), last.Addr(f.AddrLen)); ok && first.Done() && last.Done() {
			m[k] = append(m[k], p)
		}
	}
	for _, l := range m {
		slices.SortFunc(l, netip.Prefix.Compare)
	}
	return m
}
