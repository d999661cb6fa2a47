package plan

import (
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// changes calls fn with the frontends of one family that are new (old is nil), removed (new is nil)
// or changed, and then with unchanged frontends (old is new) that use a changed pool.
func changes(c *servicemodel.ChangeSet, f *nft.Family, fn func(old, new *servicemodel.Frontend)) {
	for _, fc := range c.Frontends {
		fe := fc.New
		if fe == nil {
			fe = fc.Old
		}
		if fe.Key.Family() == f.Model {
			fn(fc.Old, fc.New)
		}
	}

	var last servicemodel.PortName
	for _, pc := range c.Pools {
		if pc.Old == nil || pc.New == nil || pc.New.ID.Family != f.Model {
			continue // its frontends were added, removed or changed
		}
		if pc.New.ID.Service == last {
			continue // the other pool of a service port, planned together with the first
		}
		last = pc.New.ID.Service
		for _, fe := range c.New.FrontendsOf(last) {
			old := c.Old.Frontend(fe.Key)
			if fe.Key.Family() == f.Model && old != nil && old.Equal(fe) {
				fn(fe, fe)
			}
		}
	}
}
