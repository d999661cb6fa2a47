package iptables

import (
	"context"
	"maps"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// lookAtGuards reads the sysctl route_localnet and its guards if node ports begin or cease to
// answer at localhost, because other programs may have changed them since the last observation.
func (b *backend) lookAtGuards(ctx context.Context, c *servicemodel.ChangeSet) error {
	next := c.New.Rules()
	was, want := b.l.localhost(nft.IPv4, &b.state.rules), b.l.localhost(nft.IPv4, &next)
	if was == want {
		return nil
	}
	n, err := b.kernel.readGuards(ctx, b.l)
	if err != nil {
		return err
	}
	if was {
		n.before, n.kept = b.found.localnet.before, b.found.localnet.kept
	}
	b.found.localnet = n
	return nil
}

// readGuards reads the sysctl route_localnet and the chains that may guard it.
func (k *kernel) readGuards(ctx context.Context, l *layout) (localnet, error) {
	r := &raw{}
	if _, err := k.reader.listChains(ctx, nft.IPv4, r); err != nil {
		return localnet{}, err
	}
	chains := r.tables[filter4].chains
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		if !mayGuard(name) {
			continue
		}
		found, err := k.reader.sharedRules(ctx, filter4.chain(name))
		if err != nil {
			return localnet{}, err
		}
		chains[name].rules = rulesOf(found)
	}
	var err error
	r.routeLocalnet, err = k.sysctl.Get()
	return l.localnetOf(r), err
}

// before turns route_localnet off if a plan removes the guard. The sysctl lets packets to loopback
// addresses in, so it is on only while the guard is there.
func (k *kernel) before(c sysctlChange) error {
	if c == sysctlOff {
		return k.sysctl.Set(false)
	}
	return nil
}

// after turns route_localnet on if the committed plan has brought the guard.
func (k *kernel) after(c sysctlChange) error {
	if c == sysctlOn {
		return k.sysctl.Set(true)
	}
	return nil
}
