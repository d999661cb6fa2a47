package nftables

import (
	"context"
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/loopback"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// The sysctl route_localnet is on while something answers at loopback addresses, and only while the
// guard is there. What it was before is a setting, written by the transaction that brings the
// guard. It goes back to that before the guard goes, unless somebody else has a guard, and so
// relies on it.

// lookAtLocalnet says in an observation if the sysctl is off and should not be.
func (b *Backend) lookAtLocalnet(o *dataplane.Observation) error {
	b.localnetOff = false
	r := o.Table.Rules()
	if !loopback.Wanted(&r) {
		return nil
	}
	on, err := b.kernel.localnet.Get()
	if b.localnetOff = err == nil && !on; b.localnetOff {
		o.Drift = append(o.Drift, "sysctl "+loopback.Name+" is 0")
	}
	return err
}

// localnetStands reports whether the sysctl is on if it should be.
func (b *Backend) localnetStands() (bool, error) {
	if !loopback.Wanted(&b.rules) {
		return true, nil
	}
	return b.kernel.localnet.Get()
}

// beforeCommit makes the sysctl ready for a transaction that leads to new rules, and reports
// whether it is to be turned on after it.
func (b *Backend) beforeCommit(ctx context.Context, r servicemodel.Rules) (turnOn bool,
	err error) {
	was, want := loopback.Wanted(&b.rules), loopback.Wanted(&r)
	switch {
	case was && want:
		return b.localnetOff, nil
	case was:
		return false, b.kernel.restoreLocalnet(ctx, b.pl.table, b.pl.localnet)
	case !want:
		return false, nil
	}
	on, err := b.kernel.localnet.Get()
	if err != nil {
		return false, err
	}
	// Where it is on and somebody has a guard, it was not the administrator. Tables of ours that
	// are made anew may have one, and then know what it was before.
	ours, others, err := b.kernel.guards(ctx, b.pl.table)
	if !ours {
		b.pl.localnet = on && !others
	}
	return !on, err
}

// afterCommit turns the sysctl on.
func (b *Backend) afterCommit(turnOn bool) error {
	if !turnOn {
		return nil
	}
	b.localnetOff = false
	return b.kernel.localnet.Set(true)
}

// restoreLocalnet turns the sysctl off, unless it was on before or others rely on it.
func (k *kernel) restoreLocalnet(ctx context.Context, table string, before bool) error {
	if before {
		return nil
	}
	_, others, err := k.guards(ctx, table)
	if err != nil || others {
		return err
	}
	return k.localnet.Set(false)
}

// guards reports whether the instance has a guard, and whether somebody else has: another one of
// this backend, or kube-proxy, kubelet or the iptables backend, in a chain …-FIREWALL of iptables.
func (k *kernel) guards(ctx context.Context, table string) (ours, others bool, err error) {
	req := k.get(nft.IPv4, nft.MsgGetChain, "chains of family", nft.IPv4.Name)
	err = k.conn.Dump(ctx, req, func(m rawnl.Message) error {
		c, err := nft.DecodeChain(m.Attrs)
		guard := c.Name == chainGuard ||
			c.Table == "filter" && strings.HasSuffix(c.Name, "-FIREWALL")
		ours = ours || guard && c.Use > 0 && c.Table == table
		others = others || guard && c.Use > 0 && c.Table != table
		return err
	})
	return ours, others, err
}

// cleanupLocalnet restores the sysctl before the tables are deleted.
func (k *kernel) cleanupLocalnet(ctx context.Context, table string) error {
	raw := newRawTable(table)
	err := k.dumpSet(ctx, nft.IPv4, raw, setSettings, func(e nft.Elem) {
		raw.add(setSettings, cloneElem(e))
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	r, before, err := newReading(nft.IPv4, raw).settings()
	if err != nil || !loopback.Wanted(&r) {
		return nil // what is there is not ours, or does not answer at loopback addresses
	}
	return k.restoreLocalnet(ctx, table, before)
}
