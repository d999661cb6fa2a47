package iptables

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// If a transaction is too large for the socket, as in an unprivileged user namespace, the backend
// can also remove an instance that it has written in parts.
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

// If a request fails while an instance is removed in parts, in the first transaction or after it,
// the removal returns the error.
func TestEveryFailureIsToldWhileALargeInstanceGoes(t *testing.T) {
	t.Parallel()
	wide, ns, _ := opened(t, Config{})
	tap, faults, transactions, failing := &rawnltest.Tap{}, rawnltest.NewFaults(), 0, 1
	narrow := ok(openWith(rawnl.Config{NetNS: ns.NetNS(), Limit: 16_000,
		Wrap: func(s rawnl.Socket) rawnl.Socket { return tap.Wrap(faults.Wrap(s)) }}))(t)
	defer narrow.Close()
	refusal := rawnltest.All()[slices.IndexFunc(rawnltest.All(), func(f rawnltest.Fault) bool {
		return f.Name == "the kernel answers ENOSPC"
	})]
	tap.Request = func(request []rawnltest.Message) {
		if len(request) == 1 {
			return
		}
		if transactions++; transactions == 1 {
			faults.Arm(refusal, failing)
		}
	}

	for hits := 1; hits > 0; failing++ {
		commit(t, wide, manyServices(200, 1))
		transactions = 0
		_, err := narrow.Cleanup(t.Context())
		if hits = faults.Disarm(); hits > 0 {
			require.ErrorIs(t, err, unix.ENOSPC, failing)
		} else {
			require.NoError(t, err)
		}
	}

	require.Greater(t, transactions, 1)
	require.NotContains(t, save(t, ns, nft.IPv4), "KUBE")
}
