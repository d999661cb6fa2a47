package iptables

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/netnstest"
	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestScaleTry(t *testing.T) {
	netnstest.Require(t)
	n, _ := strconv.Atoi(os.Getenv("N"))
	if n == 0 {
		t.Skip()
	}
	ns, err := netnstest.NewNS("x")
	require.NoError(t, err)
	defer ns.Close()
	b, err := New(&Config{NetNS: ns.Fd()})
	require.NoError(t, err)
	ctx := context.Background()
	o, err := b.Observe(ctx)
	require.NoError(t, err)
	require.Empty(t, o.Drift)
	start := time.Now()
	s := manyServices(n, 10)
	t.Log("state", time.Since(start))
	start = time.Now()
	table := resolve(t, nil, s)
	t.Log("resolve", time.Since(start))
	start = time.Now()
	c := sm.Diff(o.Table, table)
	require.NoError(t, b.Check(c))
	stats, err := b.Commit(ctx, c)
	require.NoError(t, err)
	t.Log("commit", time.Since(start), stats)
	for i := range 5 {
		name := svcName("service-" + strconv.Itoa(i))
		eps := append([]sm.Endpoint{}, s.Endpoints(name)...)
		eps[3].Addr = endpoint(i, 63)
		s = s.WithEndpoints(name, eps)
		start = time.Now()
		next := resolve(t, table, s)
		c := sm.Diff(table, next)
		p, err := b.Plan(c)
		require.NoError(t, err)
		if i == 0 {
			t.Log(p.String())
		}
		stats, err = b.Commit(ctx, c)
		require.NoError(t, err)
		t.Log("change", time.Since(start), stats)
		table = next
	}
	start = time.Now()
	o, err = b.Observe(ctx)
	require.NoError(t, err)
	t.Log("observe", time.Since(start), len(o.Drift))
	for i, d := range o.Drift {
		if i < 20 {
			t.Log(d)
		}
	}
	require.True(t, sm.Diff(o.Table, table.Arrange(o.Table)).Empty())
	if os.Getenv("SAVE") != "" {
		ns.Do(func() error {
			out, err := exec.Command("iptables-save").CombinedOutput()
			os.WriteFile(os.Getenv("SAVE"), out, 0o644)
			return err
		})
	}
	start = time.Now()
	stats, err = b.Cleanup(ctx)
	require.NoError(t, err)
	t.Log("cleanup", time.Since(start), stats)
	o, err = b.Observe(ctx)
	require.NoError(t, err)
	require.Empty(t, o.Drift)
}
