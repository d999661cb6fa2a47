package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// The backend can read three things of an instance that another version of kernlb made. Each
// element of a registry is a frontend. The element's comment begins with the owner. Elements of
// other sets whose keys begin with a frontend's key belong to that frontend. This is enough to
// remove the objects of owners. Addresses in cluster-ips and in hairpins stay until the last owner
// goes, and the tables with it.

// readOther reads which owners the frontends in a table of another layout belong to. It notes the
// elements of this reading's owners as drift.
func (p *partsReading) readOther(ctx context.Context, r *reading, c *servicemodel.Contents) error {
	p.text, r.text = append(p.text, r.text...), nil
	if p.version.number == 0 {
		return p.unreadable()
	}
	if !r.exists {
		return nil
	}
	r.skeleton = skeleton{exists: true, broken: true}
	for _, k := range kinds {
		registry := (&nft.Set{Key: k.key(r.f)}).Spec()
		if r.specs[k.registry] != registry {
			return p.unreadable()
		}
		own, err := p.readRegistry(ctx, r, k, c)
		if err == nil {
			err = p.readOwn(ctx, r, registry, own)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unreadable returns the error for tables of another version that cannot be read.
func (p *partsReading) unreadable() error {
	return fmt.Errorf("%w: %s", dataplane.ErrOtherLayout, strings.Join(p.text, "; "))
}

// readRegistry reads all frontends of a kind, and returns the keys of the frontends of the
// reading's owners.
func (p *partsReading) readRegistry(ctx context.Context, table *reading, k *kind,
	c *servicemodel.Contents) (own map[string]bool, err error) {
	own = map[string]bool{}
	err = p.k.dumpSet(ctx, table, k.registry, func(e nft.Elem) {
		r, text := nft.Reader{Bytes: e.Key}, nft.CommentOf(e.UserData)
		fe := &servicemodel.Frontend{Key: r.Frontend(table.f.Any, k == kindNodePort)}
		name, _, _ := strings.Cut(text, " ")
		var err error
		if fe.Service, err = rendering.ParsePortName(name, fe.Key.Protocol); err != nil {
			return // the frontend has no owner
		}
		// Another version may use unknown words. They do not matter here.
		known, err := rendering.ParseComment(text, fe.Key, func(string) bool { return true })
		if err == nil {
			fe = known
		}
		c.Frontends = append(c.Frontends, fe)
		if slices.Contains(p.owners, fe.Service.Name.Namespace) {
			own[string(e.Key)] = true
		}
	})
	return own, err
}

// readOwn finds the elements of these frontends in all sets whose keys are, or begin with, the
// registry's. Remembered clients are left out, because they expire by themselves.
func (p *partsReading) readOwn(ctx context.Context, r *reading, registry nft.SetSpec,
	own map[string]bool) error {
	if len(own) == 0 {
		return nil
	}
	const fieldBits = 6 // of a field in the type of a concatenation
	for _, name := range slices.Sorted(maps.Keys(r.specs)) {
		spec := r.specs[name]
		if spec.KeyType != registry.KeyType && spec.KeyType>>fieldBits != registry.KeyType ||
			spec.Flags&nft.SetTimeout != 0 || isAnonymous(name) {
			continue
		}
		l := &nft.ElemList{}
		err := p.k.dumpSet(ctx, r, name, func(e nft.Elem) {
			if own[string(e.Key[:registry.KeyLen])] {
				l.Add(nft.Elem{Key: e.Key, KeyEnd: e.KeyEnd})
			}
		})
		if err != nil {
			return err
		}
		r.drift[name] = l
	}
	return nil
}

// commitRemoval removes the objects of owners from tables of another layout. If no frontend is
// left, it deletes the tables, of any layout.
func (b *backend) commitRemoval(ctx context.Context, left int) (dataplane.Stats, error) {
	off := false
	if left == 0 {
		var err error
		if off, err = b.cleanupLocalnet(ctx); err != nil {
			return dataplane.Stats{}, err
		}
	}
	stats, err := b.send(ctx, b.pl.removal(left))
	if err != nil && off {
		err = errors.Join(err, b.kernel.localnet.Set(true)) // the tables stay and need it
	}
	if err == nil && left == 0 {
		b.pl.rules, b.pl.localnet = servicemodel.Rules{}, localnet{}
	}
	b.observed = false
	return stats, err
}
