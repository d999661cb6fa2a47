package nftables

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

func prefixes(l ...string) (out []netip.Prefix) {
	for _, s := range l {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// programCases are the programs that a table can have.
var programCases = []struct {
	name  string
	rules servicemodel.Rules
	shape shape
	newer bool // nft 1.0.6 cannot load this one from text
}{
	{name: "no services", rules: servicemodel.Rules{MasqueradeMark: 0x4000}},
	{name: "everything but affinity", rules: servicemodel.Rules{
		MasqueradeMark: 0x4000,
		LocalPods: servicemodel.PodDetector{CIDRs: prefixes("10.244.0.0/16", "10.245.0.0/17",
			"fd00:10:244::/56", "fd00:10:245::/49")},
		NodePorts:    prefixes("0.0.0.0/0", "::/0"),
		ServiceCIDRs: prefixes("10.96.0.0/12", "fd00:10:96::/112"),
	}, shape: shape{uses: splitPools | sourceRanges | notFromPods | largePools}},
	{name: "pods behind a bridge, node ports at some addresses", rules: servicemodel.Rules{
		MasqueradeMark: 0x80000000,
		LocalPods:      servicemodel.PodDetector{Bridge: "cni0"},
		NodePorts: prefixes("192.0.2.10/32", "198.51.100.0/24", "2001:db8::/33",
			"2001:db8:2::10/128"),
	}},
	{name: "node ports at loopback addresses", rules: servicemodel.Rules{
		MasqueradeMark: 0x1000, LocalhostNodePorts: true,
		NodePorts: prefixes("127.0.0.1/32", "192.0.2.0/24"),
	}},
	{name: "other answers", rules: servicemodel.Rules{MasqueradeMark: 0x1000,
		NoEndpoints: "reset", Forbidden: "reset"},
		shape: shape{uses: sourceRanges}},
	{name: "neighbours are masqueraded", rules: servicemodel.Rules{MasqueradeMark: 0x1000,
		MasqueradeNeighbours: true}},
	{name: "affinity, pods behind interfaces with a prefix", newer: true, rules: servicemodel.Rules{
		MasqueradeMark: 1,
		LocalPods:      servicemodel.PodDetector{InterfacePrefix: "veth"},
	}, shape: shape{uses: stickyNodePorts, affinity: []affinity{{seconds: 1}, {seconds: 60},
		{seconds: 10800}, {seconds: 86399}}}},
	{name: "affinity of prefixes and whole services", newer: true, rules: servicemodel.Rules{
		MasqueradeMark: 1, NodePorts: prefixes("0.0.0.0/0", "::/0"),
	}, shape: shape{uses: splitPools | stickyNodePorts | notFromPods, affinity: []affinity{
		{60, 1, false}, {60, 24, false}, {600, 24, false}, {1, 0, true}, {60, 0, true},
		{60, 23, true}}}},
	{name: "schedulers", rules: servicemodel.Rules{MasqueradeMark: 1},
		shape: shape{uses: splitPools | ways, leaves: []string{
			"nodeport-external-mh-16381", "nodeport-mh-port-1021", "nodeport-rr-2-7",
			"nodeport-sh-1", "nodeport-sh-port-8", "service-external-rr-1-1023",
			"service-external-sh-port-4", "service-mh-4093", "service-mh-port-65521",
			"service-rr-65536-0", "service-sh-2", "service-sh-65536"}}},
}

// newProgram returns the program of a table at the usual place.
func newProgram(f *nft.Family, r servicemodel.Rules, s *shape) nft.Program {
	return new(place).program(f, r, s)
}

// programPlan is the plan that creates both tables without services.
func programPlan(s *shape, r servicemodel.Rules) *plan {
	p := &plan{table: defaultTable}
	for _, f := range nft.Families {
		p.tables = append(p.tables, &tablePlan{f: f, place: &place{}, create: true,
			sets:    setsOf(f, s),
			newSets: setsOf(f, s), program: newProgram(f, r, s), ops: map[string]*setOps{}})
	}
	p.next.home = nft.IPv4
	return p
}

// The kernel checks each new element of a map against each rule that asks the map. A load takes
// longer with each of these rules.
func TestFewRulesAskAMap(t *testing.T) {
	t.Parallel()
	asked := regexp.MustCompile(` map @(\S+)`)
	for _, c := range programCases {
		rules := map[string]int{}
		for _, chain := range newProgram(nft.IPv4, c.rules, &c.shape) {
			for _, r := range chain.Rules {
				for _, m := range asked.FindAllStringSubmatch(r.Text(), -1) {
					rules[m[1]]++
				}
			}
		}
		require.NotEmpty(t, rules)
		for name, n := range rules {
			most := allClasses + 1
			if strings.Contains(name, wayNames[byHash]) {
				most *= attempts // of hashes, each has a seed of its own
			}
			require.LessOrEqual(t, n, most, name)
		}
	}
}
