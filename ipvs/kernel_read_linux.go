package ipvs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// interrupted reports whether a reading failed since others changed what was being read.
func interrupted(err error) bool {
	// nfnetlink says EINVAL while the module of nf_tables is being loaded for somebody else, as it
	// does where there is none; ENOENT is a table that went while it was being read.
	for _, e := range []error{errTaken, errMisread, rawnl.ErrDumpInterrupted,
		netlink.ErrDumpInterrupted, syscall.ENOENT, syscall.EINVAL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// read reads all that concerns the instance, and says in what the companion tables are not as they
// should be. It fails with errTaken if another writer of the instance commits meanwhile. tunables
// are those that are wanted; remembered is what this process has known that they were.
func (k *kernel) read(ctx context.Context, tunables, remembered map[string]string) (o observed,
	drift []string, err error) {
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
	if err := k.readNetwork(ctx, &o, tunables, remembered); err != nil {
		return o, nil, err
	}
	if err := k.requireVersion(ctx, before); err != nil {
		return o, nil, err
	}
	if k.gen = gen.ID; before.writing {
		drift = append(drift, "a commit was begun and has not ended")
	}
	if o.companion.version = before; !before.exists {
		o.companion.version = newVersion()
	}
	return o, drift, nil
}

// readCompanion reads the companion tables, and says in what they are not as they should be. It
// does not read the version.
func (k *kernel) readCompanion(ctx context.Context) (c companion, drift []string, err error) {
	var raws [2]*rawTable
	for i, f := range nft.Families {
		if raws[i], err = k.readTable(ctx, f); err != nil {
			return companion{}, nil, err
		}
	}
	c, drift = companionOf(k.table, raws)
	return c, drift, nil
}

// readServers reads all virtual servers, and the destinations of ours and of those that a service
// may take over: at an address, since marks mean what their owner says.
func (k *kernel) readServers(ctx context.Context, o *observed) error {
	k.references.fewer() // what is deleted from here on shows
	all, err := k.vs.Services(ctx)
	if err != nil {
		return err
	}
	o.servers, o.foreign = map[ipvsnl.ServiceKey]*server{}, map[ipvsnl.ServiceKey]bool{}
	o.claimable = map[ipvsnl.ServiceKey]*server{}
	var keys []ipvsnl.ServiceKey
	var read []*server
	for _, s := range all {
		is := &server{svc: s.Service, proto: servicemodel.Protocol(s.Protocol),
			dests: map[ipvsnl.DestinationKey]ipvsnl.Destination{}}
		switch instance := uint32(s.Flags) & instanceMask; {
		case instance == k.instance:
			o.servers[s.ServiceKey] = is
		case k.takeOver && instance == 0 && s.FWMark == 0:
			o.claimable[s.ServiceKey] = is
			fallthrough
		default:
			o.foreign[s.ServiceKey] = true
		}
		if o.servers[s.ServiceKey] == is || o.claimable[s.ServiceKey] == is {
			keys, read = append(keys, s.ServiceKey), append(read, is)
		}
	}
	dests, err := k.vs.AllDestinations(ctx, keys)
	if err != nil {
		return err
	}
	for i, is := range read {
		for _, d := range dests[i] {
			is.dests[d.DestinationKey] = d.Destination
		}
	}
	return nil
}

// readNetwork reads addresses, devices, rules and routes, and tunables. What those were that the
// companion does not record, other instances may have recorded, or this process may remember, if
// somebody has deleted the table.
func (k *kernel) readNetwork(ctx context.Context, o *observed,
	tunables, remembered map[string]string) (err error) {
	if o.addresses, err = k.readAddresses(); err != nil {
		return err
	}
	if o.devices, err = k.readDevices(); err != nil {
		return err
	}
	if o.unrouted, err = k.readUnrouted(); err != nil {
		return err
	}
	if o.tunables, err = k.readTunables(ctx, tunables); err != nil {
		return err
	}
	for name := range tunables {
		if _, known := o.companion.tunables[name]; !known {
			if o.before, err = k.othersTunables(ctx); err == nil {
				maps.Copy(o.before, remembered)
			}
			return err
		}
	}
	return nil
}

// errMisread says that a dump showed an element twice: the kernel was making the set's hash table
// anew, and may have left out others.
var errMisread = errors.New("the dump showed an element twice")

// ask appends a request about a table of a family to a batch.
func ask(req *rawnl.Batch, f *nft.Family, msg uint8, table, kind, name string) {
	object := rawnl.Object{Verb: "read", Kind: kind, Name: name,
		Within: "table " + f.Name + " " + table}
	req.Message(rawnl.SubsysNFTables, msg, 0, f.NFProto, 0, object)
	req.Text(nft.AttrTableName, table)
}

// readTable reads a companion table, object by object, so that those of others neither cost time
// nor stand in the way; nil if there is none. What it reads is right if nobody has changed the
// table meanwhile.
func (k *kernel) readTable(ctx context.Context, f *nft.Family) (*rawTable, error) {
	raw := &rawTable{sets: map[string]nft.SetInfo{}, chains: map[string]nft.ChainInfo{},
		rules: map[string][]uint64{}, elems: map[string]map[string]nft.Elem{}}
	if there, err := k.readHead(ctx, f, raw); err != nil || !there {
		return nil, err
	}
	if err := k.readChains(ctx, f, raw); err != nil {
		return nil, err
	}
	if err := k.readRules(ctx, f, raw); err != nil {
		return nil, err
	}
	if err := k.readSets(ctx, f, raw); err != nil {
		return nil, err
	}
	for name, s := range raw.sets {
		raw.elems[name] = map[string]nft.Elem{}
		if s.Count == 0 {
			continue
		}
		elems, err := k.readElements(ctx, f, k.table, name)
		if err != nil {
			return nil, err
		}
		raw.elems[name] = elems
	}
	return raw, nil
}

// readHead reads what the table is, and reports whether it is there.
func (k *kernel) readHead(ctx context.Context, f *nft.Family, raw *rawTable) (bool, error) {
	var req rawnl.Batch
	ask(&req, f, nft.MsgGetTable, k.table, "table", k.table)
	replies, err := k.nf.Query(ctx, &req)
	if errors.Is(err, syscall.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, m := range replies {
		if raw.TableInfo, err = nft.DecodeTable(m.Attrs); err != nil {
			return false, err
		}
	}
	return true, nil
}

// readChains asks for our chains, each by its name: the kernel can list only those of all tables.
func (k *kernel) readChains(ctx context.Context, f *nft.Family, raw *rawTable) error {
	var req rawnl.Batch
	for _, name := range chainNames() {
		ask(&req, f, nft.MsgGetChain, k.table, "chain", name)
		req.Text(nft.AttrChainName, name)
	}
	err := k.nf.QueryAll(ctx, &req, func(_ int, m rawnl.Message) error {
		c, err := nft.DecodeChain(m.Attrs)
		raw.chains[c.Name] = c
		return err
	})
	return rawnl.Except(err, syscall.ENOENT)
}

func (k *kernel) readRules(ctx context.Context, f *nft.Family, raw *rawTable) error {
	var req rawnl.Batch
	ask(&req, f, nft.MsgGetRule, k.table, "rules", "")
	return k.nf.DumpOwn(ctx, &req, func(m rawnl.Message) error {
		r, err := nft.DecodeRule(m.Attrs)
		if err == nil && string(r.Table) == k.table {
			chain := string(r.Chain)
			raw.rules[chain] = append(raw.rules[chain], r.Hash())
		}
		return err
	})
}

func (k *kernel) readSets(ctx context.Context, f *nft.Family, raw *rawTable) error {
	var req rawnl.Batch
	ask(&req, f, nft.MsgGetSet, k.table, "sets", "")
	return k.nf.DumpOwn(ctx, &req, func(m rawnl.Message) error {
		s, err := nft.DecodeSet(m.Attrs)
		if err == nil {
			raw.sets[s.Name] = s
		}
		return err
	})
}

// readElements reads the elements of a set, by key and end of range.
func (k *kernel) readElements(ctx context.Context, f *nft.Family, table,
	set string) (map[string]nft.Elem, error) {
	var req rawnl.Batch
	ask(&req, f, nft.MsgGetSetElem, table, "elements of set", set)
	req.Text(2, set) // NFTA_SET_ELEM_LIST_SET
	elems := map[string]nft.Elem{}
	err := k.nf.DumpOwn(ctx, &req,
		func(m rawnl.Message) error { return elementsOf(m.Attrs, elems) })
	if err != nil {
		return nil, err
	}
	return elems, nil
}

// elementsOf adds the elements of a message to a set.
func elementsOf(attrs []byte, to map[string]nft.Elem) error {
	return nft.DecodeElements(bytes.Clone(attrs), func(e nft.Elem) error {
		key := string(e.Key) + string(e.KeyEnd)
		if _, twice := to[key]; twice {
			return fmt.Errorf("element %x: %w", e.Key, errMisread)
		}
		to[key] = e
		return nil
	})
}
