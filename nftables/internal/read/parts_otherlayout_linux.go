package read

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// The backend can read three things of an instance that another version of kernlb created. Each
// element of a registry is a frontend. The element's comment begins with the owner. Elements of
// other sets whose keys begin with a frontend's key belong to that frontend. This is enough to
// remove the objects of owners. Addresses in cluster-ips and in hairpins stay until the last owner
// removes the tables.

// readOther reads the owners of the frontends in a table of another layout. It records the elements
// of this reading's owners as drift.
func (p *Parts) readOther(ctx context.Context, r *Reading, c *servicemodel.Contents) error {
	p.Text, r.Text = append(p.Text, r.Text...), nil
	if p.Version.Number == 0 {
		return p.unreadable()
	}
	if !r.Exists {
		return nil
	}
	r.Skeleton = form.Skeleton{Exists: true, Broken: true}
	for _, k := range form.Kinds[:2] {
		registry := (&nft.Set{Key: k.Key(r.Family)}).Spec()
		if r.Specs[k.Registry] != registry {
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
func (p *Parts) unreadable() error {
	return fmt.Errorf("%w: %s", backends.ErrOtherLayout, strings.Join(p.Text, "; "))
}

// readRegistry reads all frontends of a kind, and returns the keys of the frontends of the
// reading's owners.
func (p *Parts) readRegistry(ctx context.Context, table *Reading, k *form.Kind,
	c *servicemodel.Contents) (own map[string]bool, err error) {
	own = map[string]bool{}
	err = p.reader.DumpSet(ctx, table, k.Registry, func(e nft.Elem) {
		r, text := nft.Reader{Bytes: e.Key}, nft.CommentOf(e.UserData)
		fe := &servicemodel.Frontend{Key: r.Frontend(table.Family.Any, k == form.KindNodePort)}
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
		if slices.Contains(p.Owners, fe.Service.Name.Namespace) {
			own[string(e.Key)] = true
		}
	})
	return own, err
}

// readOwn finds the elements of these frontends in all sets whose keys are, or begin with, the
// registry's key. Remembered clients are left out, because they expire.
func (p *Parts) readOwn(ctx context.Context, r *Reading, registry nft.SetSpec,
	own map[string]bool) error {
	if len(own) == 0 {
		return nil
	}
	const fieldBits = 6 // of a field in the type of a concatenation
	for _, name := range slices.Sorted(maps.Keys(r.Specs)) {
		spec := r.Specs[name]
		if spec.KeyType != registry.KeyType && spec.KeyType>>fieldBits != registry.KeyType ||
			spec.Flags&nft.SetTimeout != 0 || form.IsAnonymous(name) {
			continue
		}

		l := &nft.ElemList{}
		err := p.reader.DumpSet(ctx, r, name, func(e nft.Elem) {
			if own[string(e.Key[:registry.KeyLen])] {
				l.Add(nft.Elem{Key: e.Key, KeyEnd: e.KeyEnd})
			}
		})
		if err != nil {
			return err
		}
		r.Drift[name] = l
	}

	return nil
}
