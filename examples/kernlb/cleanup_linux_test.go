package main

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/kubeproxy"
	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// leaveTable makes a table like that of kube-proxy's nftables mode.
func leaveTable(t *testing.T, ns *netnstest.NS) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nft is not installed (Debian package nftables)")
	}
	require.NoError(t, ns.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader("add table ip kube-proxy; add chain ip kube-proxy services")
		return cmd.Run()
	}))
}

func TestCleanupOfKubeProxy(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	leaveTable(t, ns)
	run := func(args ...string) string {
		args = append([]string{"cleanup", "-of", "kube-proxy"}, args...)
		code, out, errs := kernlb(t, ns, args...)
		require.Equal(t, exitDone, code, errs)
		return out
	}
	const want = "nft delete table ip kube-proxy\n"
	require.Contains(t, run("-plan"), want)
	var plan kubeproxy.Plan
	require.NoError(t, json.Unmarshal([]byte(run("-plan", "-o", "json")), &plan))
	require.Equal(t, []kubeproxy.Table{{Family: "ip", Name: "kube-proxy"}}, plan.Tables)
	require.Contains(t, run(), want)
	require.Equal(t, "nothing of kube-proxy to delete\n", run())
}

func TestFlagsOfCleanup(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	for want, args := range map[string][]string{
		`-of: "cilium": want kube-proxy`: {"cleanup", "-of", "cilium"},
		"-of is for cleanup":             {"show", "-of", "kube-proxy"},
		"-plan is for tune, and for":     {"cleanup", "-plan"},
	} {
		code, _, errs := kernlb(t, ns, args...)
		require.Equal(t, exitInvalid, code)
		require.Contains(t, errs, want)
	}
}
