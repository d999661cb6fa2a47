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

// nft loads rules of another program.
func nft(t *testing.T, ns *netnstest.NS, rules string) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nft is not installed (Debian package nftables)")
	}
	require.NoError(t, ns.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		return cmd.Run()
	}))
}

func TestCleanupOfKubeProxy(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	nft(t, ns, "add table ip kube-proxy; add chain ip kube-proxy services") // as its nftables mode
	run := func(args string) string { return done(t, ns, "", "cleanup -of kube-proxy "+args) }
	const want = "nft delete table ip kube-proxy\n"
	require.Contains(t, run("-plan"), want)
	var plan kubeproxy.Plan
	require.NoError(t, json.Unmarshal([]byte(run("-plan -o json")), &plan))
	require.Equal(t, []kubeproxy.Table{{Family: "ip", Name: "kube-proxy"}}, plan.Tables)
	require.Contains(t, run(""), want)
	require.Equal(t, "nothing of kube-proxy to delete\n", run(""))
}
