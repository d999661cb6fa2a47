package nftables

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/read"
	"github.com/kernlb/kernlb/servicemodel"
)

// lookAtLocalnet notes drift in an observation if the sysctl is off and should be on.
func (b *backend) lookAtLocalnet(o *dataplane.Observation) error {
	b.pl.Localnet.Off = false
	r := o.Table.Rules()
	if !rendering.WantsRouteLocalnet(&r) {
		return nil
	}
	on, err := b.kernel.localnet.Get()
	if err != nil {
		b.observed = false
		return fmt.Errorf("nftables: observe: %w", err)
	}
	if b.pl.Localnet.Off = !on; !on {
		o.Drift = append(o.Drift, "sysctl "+rendering.RouteLocalnetName+" is 0")
	}
	return nil
}

// beforeLocalnet prepares the sysctl for a transaction. A sysctl that is needed from now on is
// turned on after the transaction, when the guard exists.
func (b *backend) beforeLocalnet(ctx context.Context, c *servicemodel.ChangeSet) error {
	was, want := b.wantsLocalnet(c)
	switch {
	case was && !want:
		_, err := b.kernel.restoreLocalnet(ctx, b.pl.Table, b.pl.Localnet.Before)
		return err
	case was || !want:
		return nil
	}
	on, err := b.kernel.localnet.Get()
	if err != nil {
		return err
	}
	// If another program has a guard, that program turned the sysctl on, and not the administrator.
	// Tables of ours that are made anew may have a guard. Then the earlier value is known.
	ours, others, err := b.kernel.guards(ctx, b.pl.Table)
	if !ours && !b.pl.Localnet.Left {
		b.pl.Localnet.Before = on && !others
	}
	b.pl.Localnet.Off = !on
	return err
}

// afterLocalnet turns the sysctl on after a transaction, if it is off and should be on.
func (b *backend) afterLocalnet() error {
	if !b.pl.Localnet.Off || !rendering.WantsRouteLocalnet(&b.pl.Rules) {
		return nil
	}
	b.pl.Localnet.Off = false
	return b.kernel.localnet.Set(true)
}

// restoreLocalnet turns the sysctl off, unless it was on before or another program relies on it.
func (k *kernel) restoreLocalnet(ctx context.Context, table string, before bool) (off bool,
	err error) {
	if before {
		return false, nil
	}
	_, others, err := k.guards(ctx, table)
	if err != nil || others {
		return false, err
	}
	return true, k.localnet.Set(false)
}

// guards reports whether the instance has a guard, and whether another program has one: another
// instance of this backend, or kube-proxy, kubelet or the iptables backend, in a chain …-FIREWALL
// of iptables.
func (k *kernel) guards(ctx context.Context, table string) (ours, others bool, err error) {
	for range guardReadings {
		k.reader.Req.Reset()
		nft.AppendGetChains(&k.reader.Req, nft.IPv4)
		torn, err := k.reader.Conn.DumpThrough(ctx, &k.reader.Req, func(m rawnl.Message) error {
			c, err := nft.DecodeChain(m.Attrs)
			guard := c.Name == form.ChainGuard ||
				c.Table == "filter" && strings.HasSuffix(c.Name, "-FIREWALL")
			ours = ours || guard && c.Use > 0 && c.Table == table
			others = others || guard && c.Use > 0 && c.Table != table
			return err
		})
		if err != nil || !torn {
			return ours, others, err
		}
	}
	return ours, others, nil
}

// guardReadings bounds how often the chains of all tables are read. A neighbour's commit interrupts
// a reading, which may then skip a chain. If every reading is interrupted, a guard counts if any of
// them saw it.
const guardReadings = 3

// cleanupLocalnet restores the sysctl before the tables are deleted. off says that this turned it
// off.
func (b *backend) cleanupLocalnet(ctx context.Context) (off bool, err error) {
	k, table := &b.kernel, b.pl.Table
	r := read.NewReading(nft.IPv4, table)
	err = k.reader.DumpSet(ctx, r, form.SetSettings,
		func(e nft.Elem) { r.Add(form.SetSettings, e) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return false, err
	}
	for _, e := range r.Elems[form.SetSettings] { // elements of any layout
		if before, ok := rendering.ParseRouteLocalnetLine(nft.CommentOf(e.UserData)); ok {
			return k.restoreLocalnet(ctx, table, before)
		}
	}
	if n := b.leftLocalnet(); n.Left && len(r.Elems[form.SetSettings]) == 0 {
		return k.restoreLocalnet(ctx, table, n.Before)
	}
	return false, nil // the sysctl is not needed, or the table is not ours
}
