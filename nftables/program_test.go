package nftables

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/plan"
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
	shape form.Shape
	newer bool // nft 1.0.6 cannot load the program from text
}{
	{name: "no services", rules: servicemodel.Rules{MasqueradeMark: 0x4000}},
	{name: "everything but affinity", rules: servicemodel.Rules{
		MasqueradeMark: 0x4000,
		LocalPods: servicemodel.PodDetector{CIDRs: prefixes("10.244.0.0/16", "10.245.0.0/17",
			"fd00:10:244::/56", "fd00:10:245::/49")},
		NodePorts:    prefixes("0.0.0.0/0", "::/0"),
		ServiceCIDRs: prefixes("10.96.0.0/12", "fd00:10:96::/112"),
	}, shape: form.Shape{Uses: form.SplitPools | form.SourceRanges | form.NotFromPods |
		form.LargePools}},
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
		shape: form.Shape{Uses: form.SourceRanges}},
	{name: "neighbours are masqueraded", rules: servicemodel.Rules{MasqueradeMark: 0x1000,
		MasqueradeNeighbours: true}},
	{name: "affinity, pods behind interfaces with a prefix", newer: true, rules: servicemodel.Rules{
		MasqueradeMark: 1,
		LocalPods:      servicemodel.PodDetector{InterfacePrefix: "veth"},
	}, shape: form.Shape{Uses: form.StickyNodePorts,
		Affinity: []form.Affinity{{Seconds: 1}, {Seconds: 60},
			{Seconds: 10800}, {Seconds: 86399}}}},
	{name: "affinity of prefixes and whole services", newer: true, rules: servicemodel.Rules{
		MasqueradeMark: 1, NodePorts: prefixes("0.0.0.0/0", "::/0"),
	}, shape: form.Shape{Uses: form.SplitPools | form.StickyNodePorts |
		form.NotFromPods, Affinity: []form.Affinity{
		{Seconds: 60, Bits: 1}, {Seconds: 60, Bits: 24}, {Seconds: 600, Bits: 24},
		{Seconds: 1, Whole: true}, {Seconds: 60, Whole: true},
		{Seconds: 60, Bits: 23, Whole: true}}}},
	{name: "schedulers", rules: servicemodel.Rules{MasqueradeMark: 1},
		shape: form.Shape{Uses: form.SplitPools | form.Ways, Leaves: []string{
			"nodeport-external-mh-16381", "nodeport-mh-port-1021", "nodeport-rr-2-7",
			"nodeport-sh-1", "nodeport-sh-port-8", "service-external-rr-1-1023",
			"service-external-sh-port-4", "service-mh-4093", "service-mh-port-65521",
			"service-rr-65536-0", "service-sh-2", "service-sh-65536"}}},
	{name: "ranges of ports", rules: servicemodel.Rules{MasqueradeMark: 1,
		NodePorts: prefixes("192.0.2.0/24", "2001:db8::/33"), MasqueradeNeighbours: true},
		shape: form.Shape{Uses: form.Ranges | form.SplitPools | form.SourceRanges |
			form.NotFromPods | form.Ways | form.RangesToPort, Leaves: []string{
			"range-external-rr-2-7", "range-rr-3-1"}}},
	{name: "ranges of node ports", rules: servicemodel.Rules{MasqueradeMark: 1,
		NodePorts: prefixes("0.0.0.0/0", "192.0.2.0/24", "::/0"), LocalhostNodePorts: true,
		MasqueradeNeighbours: true}, shape: form.Shape{Uses: form.NodeRanges | form.InTurn |
		form.SplitPools | form.NotFromPods, Leaves: []string{"noderange-rr-3-1"}}},
	{name: "ranges of both kinds", rules: servicemodel.Rules{MasqueradeMark: 1,
		NodePorts: prefixes("192.0.2.0/24", "::/0")}, shape: form.Shape{Uses: form.NodeRanges |
		form.Ranges | form.SourceRanges | form.RangesToPort}},
	{name: "mapped ranges", rules: servicemodel.Rules{MasqueradeMark: 1,
		NodePorts: prefixes("0.0.0.0/0", "::/0"), MasqueradeNeighbours: true},
		shape: form.Shape{Uses: form.NodeRanges | form.Ranges | form.InTurn | form.SplitPools |
			form.RangesShifted | form.ToPortOf(form.KindNodeRange) |
			form.ShiftedOf(form.KindNodeRange),
			Leaves: []string{"noderange-rr-3-1", "range-rr-3-1"}}},
	{name: "ranges of ports and affinity", newer: true, rules: servicemodel.Rules{
		MasqueradeMark: 1, NodePorts: prefixes("0.0.0.0/0", "::/0")},
		shape: form.Shape{Uses: form.Ranges | form.StickyNodePorts, Affinity: []form.Affinity{
			{Seconds: 60}, {Seconds: 60, Bits: 24}, {Seconds: 60, Whole: true}}}},
	{name: "ranges of ports to one port, with affinity", newer: true,
		rules: servicemodel.Rules{MasqueradeMark: 1, NodePorts: prefixes("0.0.0.0/0", "::/0")},
		shape: form.Shape{Uses: form.Ranges | form.RangesToPort | form.RangesShifted,
			Affinity: []form.Affinity{{Seconds: 60}}}},
}

// newProgram returns the program of a table at the usual hooks.
func newProgram(f *nft.Family, r servicemodel.Rules, s *form.Shape) nft.Program {
	return new(form.Hooks).Program(f, r, s)
}

// programPlan is the plan that creates both tables without services.
func programPlan(s *form.Shape, r servicemodel.Rules) *plan.Plan {
	p := &plan.Plan{Table: defaultTable}
	for _, f := range nft.Families {
		p.Tables = append(p.Tables, &plan.TablePlan{Family: f, Hooks: &form.Hooks{}, Create: true,
			Sets:    form.SetsOf(f, s),
			NewSets: form.SetsOf(f, s), Program: newProgram(f, r,
				s), Ops: map[string]*plan.SetOps{}})
	}

	p.Next.Home = nft.IPv4
	return p
}

// The kernel checks each new element of a map against each rule that uses the map. Each of these
// rules makes a load slower.
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
			most := form.AllClasses + 1
			if strings.Contains(name, form.WayNames[form.ByHash]) {
				most *= form.Attempts // each hash has its own seed
			}
			if strings.Contains(name, form.KindRange.Prefix) {
				most *= 3 // packets keep their ports, or get one port, or a port by port
			}
			if strings.HasSuffix(name, form.SetPorts) || strings.HasSuffix(name, form.SetShifts) {
				// their elements do not depend on the number of endpoints
				most = 2*form.AllClasses + form.AffinityMaps + 8
			}
			require.LessOrEqual(t, n, most, name)
		}
	}
}
