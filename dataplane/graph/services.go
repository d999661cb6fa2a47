package graph

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// maxEndpoints is the number of endpoints drawn per pool.
const maxEndpoints = 12

// Services draws the frontends of a table for which keep returns true, with their pools and
// endpoints. If keep is nil, it draws all frontends. The box of a frontend that rejects or drops
// names the cause ([servicemodel.Table.Cause]). For a large pool, it draws only the first twelve
// endpoints and the number of the others. With more than 30 service ports, it draws one row of
// numbers per namespace, with the names of up to three service ports that reject or drop.
func Services(t *servicemodel.Table, keep func(*servicemodel.Frontend) bool) *Graph {
	s := services{Graph: &Graph{title: "Services"}, t: t,
		ports: map[servicemodel.PortName]*box{}, pools: map[servicemodel.PoolID]*box{},
		endpoints: map[endpoint]*box{}}
	var all []*servicemodel.Frontend
	for f := range t.Frontends() {
		if keep == nil || keep(f) {
			all = append(all, f)
		}
	}

	slices.SortStableFunc(all, func(a, b *servicemodel.Frontend) int {
		return cmp.Or(a.Service.Compare(b.Service), cmp.Compare(a.Kind, b.Kind))
	})
	if len(chunks(all, portOf)) > maxPorts {
		for row, l := range chunks(all, namespaceOf) {
			s.namespace(row, l)
		}
		return s.Graph
	}

	for _, f := range all {
		s.frontend(f)
	}
	return s.Graph
}

// services is the drawing of a table.
type services struct {
	*Graph
	t         *servicemodel.Table
	columns   [4]*group // of the service port that is being drawn
	ports     map[servicemodel.PortName]*box
	pools     map[servicemodel.PoolID]*box
	endpoints map[endpoint]*box
}

type endpoint struct {
	addr     netip.AddrPort
	protocol servicemodel.Protocol
}

func (s *services) frontend(f *servicemodel.Frontend) {
	port := s.ports[f.Service]
	if port == nil {
		s.row(len(s.ports))
		port = s.add(s.columns[0], plain, f.Service.String())
		s.ports[f.Service] = port
	}

	lines := []string{f.Key.String(), f.Kind.String()}
	if text := f.AffinityText(); text != "" {
		lines = append(lines, wrap("affinity "+text, 28)...)
	}
	for _, r := range f.Sources {
		lines = append(lines, "only from "+r.String())
	}
	b := s.add(s.columns[1], plain, lines...)
	s.connect(port, b, "")
	if f.Internal == f.External {
		s.verdict(b, f, f.Internal, "")
		return
	}

	s.verdict(b, f, f.Internal, "from here")
	s.verdict(b, f, f.External, "from outside")
}

// row begins the row of a service port. The first row contains the titles.
func (s *services) row(n int) {
	for i, title := range []string{"service", "frontend", "pool", "endpoint"} {
		if n > 0 {
			title = ""
		}
		s.columns[i] = s.group(i, n, title)
	}
}

// poolTexts and endTexts describe verdicts.
var (
	poolTexts = map[servicemodel.Verdict]string{servicemodel.BalanceCluster: "all endpoints",
		servicemodel.BalanceLocal: "endpoints on this node"}
	endTexts = map[servicemodel.Verdict]string{servicemodel.Reject: "rejected",
		servicemodel.Drop: "dropped"}
)

// verdict draws the target of a frontend.
func (s *services) verdict(from *box, f *servicemodel.Frontend, v servicemodel.Verdict,
	text string) {
	id, balances := f.Pool(v)
	if pool := s.t.Pool(id); balances && pool != nil {
		s.connect(from, s.pool(pool), text)
		return
	}

	lines := append([]string{cmp.Or(endTexts[v], "no pool")}, wrap(s.t.Cause(f).String(), 36)...)
	s.connect(from, s.add(s.columns[2], refuses, lines...), text)
}

// pool draws a pool, unless it is already drawn.
func (s *services) pool(p *servicemodel.Pool) *box {
	if b := s.pools[p.ID]; b != nil {
		return b
	}
	what := servicemodel.BalanceCluster
	if p.ID.Local {
		what = servicemodel.BalanceLocal
	}
	lines := []string{poolTexts[what], p.ID.Family.String()}
	if p.Scheduler != servicemodel.SchedulerDefault {
		lines = append(lines, "scheduler "+string(p.Scheduler))
	}
	if p.Forwarding != servicemodel.ForwardNAT {
		lines = append(lines, "forwarding "+string(p.Forwarding))
	}
	b := s.add(s.columns[2], plain, lines...)
	s.pools[p.ID] = b
	shares := p.Shares()
	text := percent
	if shares == nil { // the scheduler decides
		shares, text = make([]float64, len(p.Slots)), func(float64) string { return "" }
	}
	order := make([]int, len(p.Slots))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return p.Slots[a].Endpoint.Compare(p.Slots[b].Endpoint)
	})
	drawn, rest := min(len(order), maxEndpoints), 1.
	for _, i := range order[:drawn] {
		rest -= shares[i]
		s.connect(b, s.endpoint(p.Slots[i].Endpoint, p.ID.Service.Protocol), text(shares[i]))
	}

	if more := len(order) - drawn; more > 0 {
		s.connect(b, s.add(s.columns[3], aside, fmt.Sprintf("and %d more", more)), text(rest))
	}
	return b
}

func (s *services) endpoint(a netip.AddrPort, p servicemodel.Protocol) *box {
	key := endpoint{a, p}
	if s.endpoints[key] == nil {
		s.endpoints[key] = s.add(s.columns[3], plain, servicemodel.TargetText(a))
	}
	return s.endpoints[key]
}

// percent returns a fraction as text, such as "33.3 %".
func percent(share float64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", 100*share), ".0") + " %"
}

// wrap breaks a text into lines of about a width.
func wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}

	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
