package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"syscall"

	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/threadns"
	"github.com/kernlb/kernlb/servicemodel"
)

// Counters reads the counters of an instance's virtual servers. IPVS always counts. Counters has
// its own sockets, so it can be used alongside a backend. Its methods are safe for concurrent use.
//
// The kernel updates the counters every two seconds (net/netfilter/ipvs/ip_vs_est.c). With direct
// routing and tunnels, it does not see answers. The counters of a new virtual server or destination
// start at zero.
type Counters struct {
	kernel kernel // with IPVS and nf_tables only
}

var _ counters.Source = (*Counters)(nil)

// OpenCounters opens the counters of an instance. It uses only the network namespace and the table
// of the configuration. It returns the same errors as [New].
func OpenCounters(cfg *Config) (*Counters, error) {
	full, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Counters{kernel{table: full.Table, instance: instanceFlag(full.Table)}}
	ns, err := threadns.Open(full.NetNS)
	if err != nil {
		return nil, fmt.Errorf("ipvs: open counters: %w", err)
	}
	defer ns.Close() //nolint:errcheck // nothing was written
	if err = c.kernel.dial(ns.NetNS()); err == nil {
		c.kernel.nf, err = rawnl.Dial(&rawnl.Config{NetNS: ns.NetNS()})
	}
	if err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("ipvs: open counters: %w", explain(err))
	}

	return c, nil
}

// Close closes the sockets.
func (c *Counters) Close() error { return errors.Join(c.kernel.vs.Close(), c.kernel.nf.Close()) }

// Read reads the virtual servers and their destinations. Each virtual server needs a separate dump.
func (c *Counters) Read(ctx context.Context) (*counters.Reading, error) {
	r, err := c.kernel.count(ctx)
	for try := 0; try < 5 && interrupted(err); try++ { // another program commits
		r, err = c.kernel.count(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("ipvs: read counters: %w", err)
	}
	return r, nil
}

func (k *kernel) count(ctx context.Context) (*counters.Reading, error) {
	all, err := k.vs.Services(ctx)
	if err != nil {
		return nil, err
	}
	var marks map[uint32]servicemodel.FrontendKey
	r := &counters.Reading{Pairs: map[counters.Pair]counters.Values{}}
	for _, s := range all {
		if uint32(s.Flags)&instanceMask != k.instance {
			continue
		}
		if s.FWMark != 0 && marks == nil {
			if marks, err = k.readMarks(ctx); err != nil {
				return nil, err
			}
		}

		dests, err := k.vs.DestinationsIf(ctx, s.ServiceKey)
		if err != nil {
			return nil, err
		}
		key := servicemodel.FrontendKey{Addr: s.Addr, Port: s.Port,
			Protocol: servicemodel.Protocol(s.Protocol)}
		if s.FWMark != 0 {
			var known bool
			if key, known = marks[s.FWMark]; !known { // it is being added or removed
				continue
			}
		}

		p := counters.Pair{Protocol: key.Protocol, Dst: netip.AddrPortFrom(key.Addr, key.Port)}
		rest := valuesOf(s.Stats) // the excess over its destinations is from removed ones
		for _, d := range dests {
			p.Endpoint = netip.AddrPortFrom(d.Addr, d.Port)
			v := valuesOf(d.Stats)
			r.Pairs[p], rest = r.Pairs[p].Plus(v), rest.Since(v)
		}

		if rest != (counters.Values{}) {
			p.Endpoint = netip.AddrPort{}
			r.Pairs[p] = r.Pairs[p].Plus(rest)
		}
	}

	return r, nil
}

func valuesOf(s ipvsnl.Stats) counters.Values {
	return counters.Values{Connections: s.Connections, PacketsIn: s.InPackets, BytesIn: s.InBytes,
		PacketsOut: s.OutPackets, BytesOut: s.OutBytes}
}

// readMarks reads the frontends of the marks of virtual servers.
func (k *kernel) readMarks(ctx context.Context) (map[uint32]servicemodel.FrontendKey, error) {
	marks := map[uint32]servicemodel.FrontendKey{}
	for _, f := range nft.Families {
		for _, kind := range kinds {
			q := nft.Query{Conn: k.nf, Family: f, Table: k.table}
			elems, err := readElements(ctx, q, kind+setMarks)
			if rawnl.Except(err, syscall.ENOENT) != nil {
				return nil, err
			}
			for _, e := range elems {
				key, mark := nft.Reader{Bytes: e.Key}, nft.Reader{Bytes: e.Data}
				frontend, n := key.Frontend(f.Any, kind == kindNodePort), mark.Native()
				if !key.Done() || !mark.Done() {
					return nil, fmt.Errorf("set %s: an element of %d bytes: %w", kind+setMarks,
						len(e.Key)+len(e.Data), rawnl.ErrMalformed)
				}

				marks[n] = frontend
			}
		}

		ranges, err := k.readRangeMarks(ctx, f)
		if err != nil {
			return nil, err
		}
		maps.Copy(marks, ranges)
	}

	return marks, nil
}

// readRangeMarks reads the ranges of the marks of virtual servers. A range is counted at its last
// port.
func (k *kernel) readRangeMarks(ctx context.Context, f *nft.Family) (
	map[uint32]servicemodel.FrontendKey, error) {
	const set = kindRange + "s"
	elems, err := readElements(ctx, nft.Query{Conn: k.nf, Family: f, Table: k.table}, set)
	if rawnl.Except(err, syscall.ENOENT) != nil {
		return nil, err
	}
	c := newCompanion()
	err = c.takeRanges(f, &rawTable{elems: map[string]map[string]nft.Elem{set: elems}})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", rawnl.ErrMalformed, err)
	}
	marks := map[uint32]servicemodel.FrontendKey{}
	for key, r := range c.records {
		for _, mark := range r.marks() {
			marks[mark] = servicemodel.FrontendKey{Addr: key.Addr, Protocol: key.Protocol,
				Port: key.EndPort}
		}
	}

	return marks, nil
}
