//go:build sharecheck

package servicemodel_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestAModifiedObjectOfATableIsFound(t *testing.T) {
	t.Parallel()
	for name, modify := range map[string]func(*sm.Frontend, *sm.Pool){
		"frontend": func(f *sm.Frontend, _ *sm.Pool) { f.Masquerade++ },
		"slots":    func(_ *sm.Frontend, p *sm.Pool) { p.Slots[0].Weight++ },
	} {
		table := tableOf(t, thisNode, webService(), endpoint("10.64.0.1", here))
		walk := func() {
			for f := range table.Frontends() {
				table.PoolsOf(f)
			}
		}

		walk()
		walk()
		for f := range table.Frontends() {
			p, _ := table.PoolsOf(f)
			modify(f, p)
			break // other tables may share the pool
		}

		require.Panics(t, walk, name)
	}
}
