package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/kubeproxy"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

func TestCleanupOfKubeProxy(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	// as its nftables mode
	nstest.NFT(t, ns, "add table ip kube-proxy; add chain ip kube-proxy services")
	run := func(args string) string { return done(t, ns, "", "cleanup -of kube-proxy "+args) }
	const want = "nft delete table ip kube-proxy\n"
	require.Contains(t, run("-plan"), want)
	var plan kubeproxy.Plan
	require.NoError(t, json.Unmarshal([]byte(run("-plan -o json")), &plan))
	require.Equal(t, []kubeproxy.Table{{Family: "ip", Name: "kube-proxy"}}, plan.Tables)
	require.Contains(t, run(""), want)
	require.Equal(t, "nothing of kube-proxy to delete\n", run(""))
}
