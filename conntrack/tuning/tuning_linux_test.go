package tuning_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack/tuning"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/cttest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

func TestTuningOfANamespace(t *testing.T) {
	t.Parallel()
	table, ns := cttest.NewTable(t)
	want := tuning.KubeProxy()
	want.UDP, want.TCPBeLiberal, want.MaxPerCore, want.Min = 45*time.Second, true, 1, 1<<30
	p := cttest.OK(tuning.NewPlan(context.Background(), table, &want))(t)
	require.Contains(t, p.String(), "nf_conntrack_udp_timeout: 30 -> 45")

	err := p.Apply(table)
	require.ErrorIs(t, err, tuning.ErrGlobalSetting, "the maximum belongs to the machine")
	require.ErrorContains(t, err, "nf_conntrack_max")
	for key, value := range map[string]string{
		"nf_conntrack_udp_timeout": "45", "nf_conntrack_tcp_be_liberal": "1",
		"nf_conntrack_tcp_timeout_established": "86400",
		"nf_conntrack_tcp_timeout_close_wait":  "3600",
	} {
		got := cttest.OK(ns.Sysctl("net/netfilter/" + key))(t)
		require.Equal(t, value, got, key)
	}

	want.MaxPerCore = 0
	p = cttest.OK(tuning.NewPlan(context.Background(), table, &want))(t)
	require.True(t, p.Empty(), p.String())
	require.NoError(t, p.Apply(table))

	other, _ := cttest.NewTable(t)
	p = cttest.OK(tuning.NewPlan(context.Background(), other, &want))(t)
	require.Contains(t, p.String(), "nf_conntrack_udp_timeout: 30 -> 45",
		"other namespaces are as they were")
}

func TestTuningNeedsATable(t *testing.T) {
	t.Parallel()
	_, err := tuning.NewPlan(t.Context(), nil, nil)
	require.EqualError(t, err, "plan the conntrack tuning: no conntrack table")
	require.EqualError(t, tuning.Plan{}.Apply(nil),
		"apply the conntrack tuning: no conntrack table")
}
