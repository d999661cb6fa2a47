package iptables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/threadns"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// kernel is the connection to nf_tables. No other part of the package has a socket.
type kernel struct {
	*threadns.Turn // makes the backend a [backends.Locker]

	conn   *rawnl.Conn
	reader *reader
	batch  rawnl.Batch // the batch that is committed
	// gen is the last generation of the ruleset at which all our objects are known to be unchanged.
	gen   uint32
	ns    *threadns.NS
	lacks lacking
	looks wait.Budget // budget for checks of the skeleton and the uses
	// sysctls owns the sysctl route_localnet.
	sysctls sysctls.Owner
}

func (k *kernel) open(cfg *Config) error {
	ns, err := threadns.Open(cfg.NetNS)
	if err != nil {
		return explain(err)
	}
	k.ns = ns
	var errs [2]error
	k.conn, errs[0] = rawnl.Dial(&rawnl.Config{NetNS: ns.NetNS()})
	k.Turn, errs[1] = threadns.OpenTurn(ns.NetNS())
	k.reader, k.looks = newReader(k.conn), wait.NewBudget(8, 20)
	if err = errors.Join(errs[:]...); err == nil {
		own := names{prefix: cfg.Prefix}.localnet()
		k.sysctls = sysctls.NewLoopback(k.ns.Do,
			sysctls.Guards{NetNS: ns.NetNS(), Table: "filter", Chain: own},
			cfg.Logger.With(logkey.Backend, Name, logkey.Instance, cfg.Prefix))
		err = k.probe(context.Background())
	}

	if err != nil {
		return explain(errors.Join(err, k.close()))
	}
	return nil
}

// probe requests the revisions of matches and targets (NFNL_MSG_COMPAT_GET,
// include/uapi/linux/netfilter/nfnetlink_compat.h). The request loads their modules. A kernel that
// lacks a match or target for only one family can be used for the other family.
func (k *kernel) probe(ctx context.Context) error {
	k.lacks = lacking{}
	for _, f := range nft.Families {
		switch err := k.probeFamily(ctx, f); {
		case err == nil:
		case k.lacks.family != nil || !errors.Is(err, kernelerr.ErrMissingModule):
			return err
		default:
			k.lacks.family, k.lacks.lacking = err, f
		}
	}

	return nil
}

// probeFamily requests the matches and targets of one family.
func (k *kernel) probeFamily(ctx context.Context, f *nft.Family) error {
	optional := map[*extension]*bool{xtRecent: &k.lacks.recent, xtSCTP: &k.lacks.sctp,
		xtBPF: &k.lacks.bpf}
	for _, x := range extensions {
		if x.put == nil { // the backend never writes it
			continue
		}
		req, typ := &k.reader.req, uint32(0)
		if x.target {
			typ = 1
		}
		req.Reset()
		req.Message(rawnl.SubsysNFTCompat, 0, rawnl.FlagAck, f.NFProto, 0,
			rawnl.Object{Verb: "find", Kind: "extension", Name: x.Name})
		req.Text(1, x.Name)    // NFTA_COMPAT_NAME
		req.U32(2, x.Revision) // NFTA_COMPAT_REV
		req.U32(3, typ)        // NFTA_COMPAT_TYPE
		_, err := k.conn.Query(ctx, req)
		switch {
		case err == nil:
		case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EPROTONOSUPPORT):
			return fmt.Errorf("ask for %s revision %d: %w", x.Name, x.Revision, err)
		case optional[x] == nil:
			return fmt.Errorf("%w xt_%s: the kernel has no %s revision %d for %s: %w",
				kernelerr.ErrMissingModule, x.Name, x.Name, x.Revision, f.Name, err)
		default:
			*optional[x] = true
		}
	}

	return nil
}

func (k *kernel) close() error {
	return errors.Join(k.Turn.Close(), k.ns.Close(), k.sysctls.Close(), k.conn.Close())
}

// Close closes the socket and leaves the kernel as it is.
func (b *backend) Close() error { return b.kernel.close() }

// Observe reads both tables of both families.
func (b *backend) Observe(ctx context.Context, _ *servicemodel.Table) (*backends.Observation,
	error) {
	o, _, err := b.observe(ctx)
	if err != nil {
		return nil, fmt.Errorf("iptables: observe: %w", err)
	}
	return o, nil
}

func (b *backend) observe(ctx context.Context) (o *backends.Observation, r *raw, err error) {
	b.observed = false
	r, gen, err := b.kernel.readAll(ctx, b.l)
	if err != nil {
		return nil, nil, err
	}
	b.kernel.gen = gen
	if o, err = b.adopt(r); err == nil {
		var drift []string
		drift, err = b.kernel.sysctls.Drift(ctx, &b.found.sysctls, sysctls.Loopback(&b.state.rules))
		o.Drift, b.observed = append(o.Drift, drift...), err == nil
	}

	return o, r, err
}

// Integrity compares the ruleset's generation with the known generation. If another program
// committed, it reads the version of the instance, which shows whether that program was another
// writer of the instance. If it was not, Integrity checks for manual edits, in at most a twentieth
// of the time: the fixed chains with our jumps must have the desired rules, and the numbers of
// chains and rules must be right. This check does not notice if a rule in a chain of a service was
// replaced, so its best result is Touched. If node ports answer at localhost, Integrity also checks
// the sysctl.
func (b *backend) Integrity(ctx context.Context) (backends.Integrity, error) {
	i, err := b.integrity(ctx)
	if err != nil {
		return backends.Broken, fmt.Errorf("iptables: integrity: %w", err)
	}
	return i, nil
}

func (b *backend) integrity(ctx context.Context) (backends.Integrity, error) {
	if !b.observed {
		return backends.Broken, nil
	}
	k := &b.kernel
	gen, err := k.conn.GenID(ctx)
	if err != nil {
		return backends.Broken, err
	}
	on, err := k.sysctls.Hold(ctx, sysctls.Loopback(&b.state.rules))
	if err != nil || !on {
		return backends.Broken, err
	}
	if gen.ID == k.gen {
		return backends.Intact, nil
	}
	if same, err := k.stillAt(ctx, b.l, b.found.versions); err != nil || !same {
		return backends.Broken, err
	}
	start := time.Now()
	if !k.looks.Allow(start) {
		return backends.Touched, nil
	}
	whole, certain, err := b.look(ctx)
	if err != nil || !whole {
		return backends.Broken, err
	}
	k.looks.Spend(time.Since(start)) // a check that found something is not charged
	if certain {
		k.gen = gen.ID
	}
	return backends.Touched, nil
}

// look checks everything that can be checked without reading the rules of services. The result is
// not certain if the list of chains was interrupted.
func (b *backend) look(ctx context.Context) (whole, certain bool, err error) {
	if whole, err = b.skeletonWhole(ctx); !whole || err != nil {
		return whole, true, err
	}
	r := &raw{}
	for _, f := range nft.Families {
		listed, err := b.kernel.reader.listChains(ctx, f, r)
		if err != nil || !listed {
			return true, listed, err
		}
	}

	one := len(b.l.versionsOf(r)) == len(b.found.versions)
	return one && b.l.usesOf(r) == b.found.uses, true, nil
}

// skeletonWhole reports whether the fixed chains have the desired rules.
func (b *backend) skeletonWhole(ctx context.Context) (bool, error) {
	for _, f := range nft.Families {
		if !b.state.present[f] {
			continue
		}
		for _, c := range b.l.fixed(f, b.state) {
			found, err := b.kernel.reader.rules(ctx, c.id, true)
			if errors.Is(err, kernelerr.ErrConflict) {
				continue // other programs keep changing it; the next check decides
			}
			if err != nil {
				return false, err
			}
			if !sameRules(b.l.ours(c.id, rulesOf(found), c.rules, c.shared), c.rules) {
				return false, nil
			}
		}
	}

	return true, nil
}

// Commit writes a change set, and repairs drift, in one transaction. If the transaction is too
// large for the socket, as in an unprivileged user namespace, Commit needs several transactions:
// new service ports come first, then changed ports, then removed ports.
func (b *backend) Commit(ctx context.Context, c *servicemodel.ChangeSet) (backends.Stats, error) {
	start := time.Now()
	if !b.observed {
		return backends.Stats{}, errNotObserved
	}
	if err := b.collision(); err != nil {
		return backends.Stats{}, b.failed("commit", err)
	}
	var stats backends.Stats
	var r *raw
	var err error
	if c.New.Rules().MasqueradeMark != 0 {
		stats, err = b.writeInParts(ctx, c)
	} else if r, _, err = b.kernel.readAll(ctx, b.l); err == nil {
		stats, err = b.remove(ctx, r)
	}

	if err != nil {
		return backends.Stats{}, b.failed("commit", err)
	}
	stats.Duration = time.Since(start)
	b.log.DebugContext(ctx, "committed", logkey.Backend, Name, logkey.Instance,
		b.l.names.prefix, logkey.Messages, stats.Messages, logkey.Bytes, stats.Bytes,
		logkey.Duration, stats.Duration)
	return stats, nil
}

// writeInParts commits a change set, in several transactions if one would be too large.
func (b *backend) writeInParts(ctx context.Context, c *servicemodel.ChangeSet) (backends.Stats,
	error) {
	write := func(ctx context.Context, c *servicemodel.ChangeSet) (backends.Stats, error) {
		return b.write(ctx, c, nil)
	}
	stats, err := write(ctx, c)
	if errors.Is(err, rawnl.ErrBatchTooLarge) {
		stats, err = rendering.CommitInParts(ctx, c, err, write)
	}
	return stats, err
}

// Cleanup removes the instance: its jumps, its chains, and the base chains and tables that become
// empty. A chain stays if a rule of another program jumps to it, and KUBE-MARK-MASQ then keeps its
// rule. If a kube-proxy in iptables mode has started since the last commit, the chains that
// kube-proxy also uses belong to kube-proxy, and stay with the rules that jump to them: see "Back
// to kube-proxy" in the package documentation.
func (b *backend) Cleanup(ctx context.Context) (backends.Stats, error) {
	start := time.Now()
	_, r, err := b.observe(ctx)
	if err != nil {
		return backends.Stats{}, fmt.Errorf("iptables: cleanup: %w", err)
	}
	if b.collision() != nil {
		return backends.Stats{}, nil // there is no instance
	}
	stats, err := b.remove(ctx, r)
	if err != nil {
		return backends.Stats{}, b.failed("cleanup", err)
	}
	stats.Duration = time.Since(start)
	return stats, nil
}

// remove removes the instance, unless another writer has committed since the observation. r is a
// reading of everything. If one transaction would be too large, the services are removed before the
// rest.
func (b *backend) remove(ctx context.Context, r *raw) (stats backends.Stats, err error) {
	if b.l.handedBack(r) {
		stats, err = b.commit(ctx, b.l.planHandedBack(&b.found, r))
		b.log.InfoContext(ctx, "kube-proxy has begun: its chains stay", logkey.Backend, Name,
			logkey.Instance, b.l.names.prefix)
	} else {
		stats, err = b.write(ctx, servicemodel.Diff(b.state.table, nil), r)
		if errors.Is(err, rawnl.ErrBatchTooLarge) {
			stats, err = b.removeInParts(ctx)
		}
	}

	if err == nil {
		b.state, b.written, b.observed = nil, nil, false
		b.found.sysctls = sysctls.State{}
	}

	return stats, err
}

// removeInParts removes the services of the instance, in several transactions, and then the rest.
func (b *backend) removeInParts(ctx context.Context) (backends.Stats, error) {
	none, err := servicemodel.NewTable(servicemodel.Contents{Rules: b.state.rules})
	if err != nil {
		return backends.Stats{}, err
	}
	stats, err := b.writeInParts(ctx, servicemodel.Diff(b.state.table, none))
	if err != nil {
		return stats, err
	}
	r, _, err := b.kernel.readAll(ctx, b.l)
	if err != nil {
		return stats, err
	}
	rest, err := b.write(ctx, servicemodel.Diff(b.state.table, nil), r)
	return stats.Plus(rest), err
}

// failed wraps an error after which the kernel must be observed again.
func (b *backend) failed(doing string, err error) error {
	b.observed = false
	if lacks := nft.Missing(err, &b.kernel.batch); lacks != nil {
		return fmt.Errorf("iptables: %s: %w", doing, lacks)
	}
	if conflicts(err) {
		return fmt.Errorf("iptables: %s: %w: %w", doing, kernelerr.ErrConflict, err)
	}
	return fmt.Errorf("iptables: %s: %w", doing, err)
}

// explain names the feature that the kernel lacks if a backend cannot be opened.
func explain(err error) error {
	// the answer of nfnetlink if it does not know the subsystem
	if len(rawnl.Refusals(err)) > 0 && errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w nft_compat: %w", kernelerr.ErrMissingModule, err)
	}
	return nft.Explain(err, nil, nft.Running())
}

// check lets the kernel check a transaction without committing it.
func (k *kernel) check(ctx context.Context, b *rawnl.Batch) error { return k.conn.Check(ctx, b) }

// Blame waits until another program changes a chain of the instance, or deletes rules of a base
// chain, and returns that program. Blame makes the backend a [backends.Blamer].
func (b *backend) Blame(ctx context.Context) (backends.Program, error) {
	k := &b.kernel
	g, err := nft.Author(ctx, k.ns, k.conn, func(c nft.Changed) bool {
		return b.l.names.owned(c.Chain) || c.Deleted && (c.Table == "nat" || c.Table == "filter")
	})
	if err != nil {
		return backends.Program{}, fmt.Errorf("iptables: witness: %w", err)
	}
	return backends.Program{Name: g.ProcName, Thread: g.ProcPID}, nil
}

// conflicts reports whether the kernel refused a transaction because another program changed
// something: an object that the transaction deletes, or a rule before which it inserts, no longer
// exists; an object that it creates already exists; or a rule jumps to a chain that it deletes.
func conflicts(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY)
}
