package docs_test

import (
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// oneLine returns a file of docs, in one line.
func oneLine(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/" + name)
	require.NoError(t, err)
	return strings.Join(strings.Fields(string(text)), " ")
}

// backends.md says which backend has which scheduler.
func TestBackendsHaveTheSchedulersThatTheDocumentationNames(t *testing.T) {
	t.Parallel()
	_, row, found := strings.Cut(oneLine(t, "backends.md"), "| `kernlb.io/scheduler` |")
	require.True(t, found)
	says := map[string][]string{}
	for backend := range strings.SplitSeq(strings.Split(row, "|")[3], ";") {
		name, schedulers, _ := strings.Cut(strings.TrimSpace(backend), " ")
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(schedulers, -1) {
			says[name] = append(says[name], m[1])
		}
	}
	of := servicemodel.Service{Name: servicemodel.Name{Namespace: "default", Name: "web"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}}
	for name, check := range map[string]func(*servicemodel.ChangeSet) error{
		"nftables": nftables.Check, "iptables": iptables.Check, "ipvs": ipvs.Check} {
		var has []string
		for _, s := range []servicemodel.Scheduler{"random", "rr", "wrr", "lc", "wlc", "lblc",
			"lblcr", "sh", "dh", "sed", "nq", "mh", "fo", "ovf"} {
			of.Scheduler = s
			table, err := servicemodel.Resolve(nil, servicemodel.State{}.WithService(&of))
			require.NoError(t, err)
			if check(servicemodel.Diff(nil, table)) == nil {
				has = append(has, string(s))
			}
		}
		if name == "ipvs" { // "those of IPVS", which are all but random
			require.Len(t, has, 13)
			require.False(t, slices.Contains(has, "random"))
			continue
		}
		require.Equal(t, says[name], has, name)
	}
}

// cni.md says how long the names of an owner, a service and a port may be together.
func TestNamesHaveTheLengthThatTheDocumentationNames(t *testing.T) {
	t.Parallel()
	m := regexp.MustCompile(`have (\d+) bytes together, (\d+) if the port has no name`).
		FindStringSubmatch(oneLine(t, "cni.md"))
	require.Len(t, m, 3)
	for i, port := range []string{"http", ""} {
		limit, err := strconv.Atoi(m[i+1])
		require.NoError(t, err)
		valid := func(bytes int) error {
			return (&servicemodel.Service{Name: servicemodel.Name{Namespace: "owner",
				Name: strings.Repeat("n", bytes-len("owner")-len(port))},
				Ports: []servicemodel.ServicePort{{Name: port, Protocol: servicemodel.TCP,
					Port: 80}}}).Validate()
		}
		require.NoError(t, valid(limit), "with %d bytes", limit)
		require.Error(t, valid(limit+1), "with %d bytes", limit+1)
	}
}
