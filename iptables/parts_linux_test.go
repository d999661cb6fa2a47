package iptables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// A socket that cannot send so much at once, as in an unprivileged user namespace, can also remove
// an instance that it has written in parts.
func TestALargeInstanceGoesInParts(t *testing.T) {
	t.Parallel()
	_, ns, _ := opened(t, Config{})
	b := ok(openWith(rawnl.Config{NetNS: ns.NetNS(), Limit: 40_000}))(t)
	defer b.Close()
	for name, remove := range map[string]func(*sm.Table) error{
		"cleanup": func(*sm.Table) error {
			_, err := b.Cleanup(t.Context())
			return err
		},
		"commit": func(table *sm.Table) error {
			_, err := b.Commit(t.Context(), sm.Diff(table, nil))
			return err
		},
	} {
		observe(t, b)
		state := manyServices(400, 1)
		ok(b.Commit(t.Context(), changeTo(t, b, state)))(t)
		require.NoError(t, remove(observe(t, b)), name)
		require.NotContains(t, save(t, ns, nft.IPv4), "KUBE", name)
	}
}
