package iptables

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// The service in the package's documentation gets the documented rules.
func TestTheDocumentedRulesAreThere(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	doc, _, _ = cutBytes(doc, "# Many services")
	ports := []sm.EndpointPort{{Name: "http", Protocol: sm.TCP, Port: 8080}}
	s := sm.State{}.WithNode(testNode()).WithService(&sm.Service{
		Name: svcName("web"),
		Ports: []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: 80,
			NodePort: 30080}},
		ClusterIPs:      addrs("10.96.0.10"),
		LoadBalancerIPs: []sm.LoadBalancerIP{{Addr: addrs("203.0.113.8")[0]}},
	}).WithEndpoints(svcName("web"), []sm.Endpoint{
		{Addr: addrs("10.244.1.1")[0], Ready: true, Serving: true, Node: "node", Ports: ports},
		{Addr: addrs("10.244.1.2")[0], Ready: true, Serving: true, Node: "another", Ports: ports},
	})
	plan := planFor(t, s)[0].String()
	for _, command := range []string{"-I PREROUTING 1", "-I OUTPUT 1", "-I POSTROUTING 1",
		"-I INPUT 1", "-I FORWARD 1", "-I FORWARD 2"} {
		plan = strings.ReplaceAll(plan, command, "-A "+strings.Fields(command)[1])
	}
	checked := 0
	for line := range strings.Lines(string(doc)) {
		line, ok := strings.CutPrefix(line, "//\t-A ")
		if !ok {
			continue
		}
		// "…" stands for text that is too long to show.
		for part := range strings.SplitSeq(strings.TrimSpace(line), "…") {
			require.Contains(t, plan, part)
			checked++
		}
	}
	require.Greater(t, checked, 25)
}

func cutBytes(b []byte, sep string) (before, after []byte, found bool) {
	s, rest, ok := strings.Cut(string(b), sep)
	return []byte(s), []byte(rest), ok
}

func TestErrorsShowTheRule(t *testing.T) {
	t.Parallel()
	var b rawnl.Batch
	e := newEncoder(&b)
	id := filter6.chain("KUBE-SERVICES")
	e.rule(id, nft.Last, 0, &rule{dst: prefixes("fd00::1/128")[0],
		target: targetReject})
	require.Equal(t, "rule -d fd00::1/128 -j REJECT --reject-with icmp6-port-unreachable",
		ruleOf(b.Bytes(), 0))
	b.Reset()
	e.of(id).FlushChain(id.name)
	require.Equal(t, "rule", ruleOf(b.Bytes(), 0))
	require.Equal(t, "rule", ruleOf(nil, 0))
}
