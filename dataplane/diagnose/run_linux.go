package diagnose

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/livetrace"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/internal/rtnetlink"
	"github.com/kernlb/kernlb/internal/threadns"
	"github.com/kernlb/kernlb/servicemodel"
)

const (
	// mostEndpoints is the maximum number of endpoints that get a connection. mostTraces is the
	// maximum number of unanswered connections that are traced.
	mostEndpoints = 32
	mostTraces    = 2
	// traceLimit is the time to wait until a packet is seen in this node.
	traceLimit = 3 * time.Second
	// flowsLimit limits the time to read the conntrack table.
	flowsLimit = 2 * time.Second
)

type runner struct {
	*Config
	report       *Report
	node, client *threadns.NS
	table        *conntrack.Table
	routes       *rtnetlink.Conn
	pod          bool // the client's namespace differs from the node's
	packet       servicemodel.Packet
	decision     servicemodel.Decision

	mu sync.Mutex // for routes
}

// Run makes the diagnosis. It needs CAP_NET_ADMIN and CAP_NET_RAW, and CAP_SYS_ADMIN if the client
// is in another network namespace. It takes up to ten seconds if there are many faults, and
// otherwise less than a second.
func Run(ctx context.Context, cfg *Config) (*Report, error) {
	r, err := begin(cfg)
	if err != nil {
		return nil, fmt.Errorf("diagnose: %w", err)
	}
	defer r.close()
	if err := r.walk(ctx); err != nil {
		return nil, fmt.Errorf("diagnose: %w", err)
	}
	if r.decision.Frontend != nil {
		r.report.others(r.Config, r.packet, r.pod, &r.decision)
	}
	r.report.judgeDrift(r.Drift)
	return r.report, nil
}

// Follow traces one connection of the client to an endpoint of the service. If endpoint is the zero
// value, the rules choose the endpoint. It connects as [Run] does.
func Follow(ctx context.Context, cfg *Config, endpoint netip.AddrPort) (*livetrace.Trace, error) {
	r, err := begin(cfg)
	if err != nil {
		return nil, fmt.Errorf("diagnose: follow: %w", err)
	}
	defer r.close()
	t, err := r.followOne(ctx, endpoint)
	if err != nil {
		return nil, fmt.Errorf("diagnose: follow: %w", err)
	}
	return t, nil
}

func (r *runner) followOne(ctx context.Context, endpoint netip.AddrPort) (*livetrace.Trace,
	error) {
	if err := r.choose(); err != nil {
		return nil, err
	}
	var to *servicemodel.Candidate
	if endpoint.IsValid() {
		d := r.Table.Decide(r.packet, r.Here)
		_, out := r.silent(&d)
		l := slices.Concat(d.Candidates, out)
		i := slices.IndexFunc(l, func(c servicemodel.Candidate) bool {
			return c.Endpoint == endpoint
		})
		if i < 0 {
			return nil, fmt.Errorf("%v is no endpoint for connections from %v to %v", endpoint,
				r.packet.Src.Addr(), r.packet.Dst)
		}

		to = &l[i]
	}

	t, err := r.follow(ctx, to)
	if err == nil && t == nil {
		err = errors.New(r.report.Fault.Says)
	}
	return t, err
}

// begin checks a configuration, and opens what a run needs.
func begin(cfg *Config) (*runner, error) {
	if cfg == nil || cfg.Table == nil || !cfg.To.Protocol.Valid() || cfg.To.NodePort() {
		return nil, errors.New("fields To and Table are required, and To has an address")
	}
	r := &runner{Config: cfg, report: &Report{To: cfg.To, Client: cfg.Source, Steps: []string{}}}
	if err := r.open(); err != nil {
		r.close()
		return nil, err
	}

	r.packet.Dst = netip.AddrPortFrom(cfg.To.Addr, cfg.To.Port)
	r.packet.Protocol = cfg.To.Protocol
	return r, nil
}

func (r *runner) open() (err error) {
	if r.node, err = threadns.Open(r.NetNS); err != nil {
		return err
	}
	from := r.From
	if from == "" {
		from = r.NetNS
	}
	if r.client, err = threadns.Open(from); err != nil {
		return fmt.Errorf("the client: %w", err)
	}
	r.pod = !r.node.Same(r.client)
	if r.table, err = conntrack.Open(&conntrack.Config{NetNS: r.node.NetNS()}); err != nil {
		return err
	}
	r.routes, err = rtnetlink.Open(r.node)
	return err
}

func (r *runner) close() {
	r.routes.Close()
	if r.table != nil {
		r.table.Close()
	}
	r.client.Close() //nolint:errcheck // nothing was written
	r.node.Close()   //nolint:errcheck // as above
}

func (r *runner) walk(ctx context.Context) error {
	if !r.pod {
		r.report.note("the client is this node: packets of others are forwarded, and may meet " +
			"more; -from names a client")
	}

	if err := r.choose(); err != nil {
		r.report.add(r.judgeClient(err))
		return nil
	}

	var fault *Fault
	if r.decision, fault = r.judgeModel(r.packet, r.pod); fault != nil {
		r.report.add(fault)
		return r.flows(ctx)
	}

	if len(r.Drift) == 0 {
		r.report.ok("the kernel holds it: %s", r.decision.Reason)
	}
	if r.To.Protocol == servicemodel.SCTP {
		r.report.note("SCTP is not sent")
		return r.flows(ctx)
	}

	traced, err := r.follow(ctx, nil)
	if err != nil {
		return err
	}
	if traced != nil {
		if fault = r.judgeTrace(traced, r.decision); fault == nil {
			r.report.ok("a connection passes all rules of this node")
		}
		r.report.add(fault)
	}

	if err := r.endpoints(ctx); err != nil {
		return err
	}
	return r.flows(ctx)
}

// judgeClient judges why the client cannot send.
func (r *runner) judgeClient(err error) *Fault {
	who, do := "this node", "a default route is enough; or name the client: -from"
	if r.pod {
		who, do = "the client", "ip route, in the network namespace of the client; a default "+
			"route is enough"
	}
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return &Fault{ClientRoute, fmt.Sprintf("%s has no route to %v", who, r.To.Addr), do}
	}
	return &Fault{ClientRoute, fmt.Sprintf("%s cannot send to %v: %s", who, r.packet.Dst,
		strings.TrimPrefix(err.Error(), "dial ")), do}
}

// choose chooses the source of packets, and the link on which they arrive.
func (r *runner) choose() error {
	src, dst := r.Source, r.packet.Dst
	if !src.IsValid() {
		err := r.client.Do(func() error {
			probe, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(dst))
			if err != nil {
				return err
			}
			src = probe.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
			return probe.Close()
		})
		if err != nil {
			return err
		}
	}

	r.report.Client = src
	r.packet.Src, r.packet.FromThisNode = netip.AddrPortFrom(src, 0), !r.pod
	if r.pod {
		back, err := r.routes.RouteGet(src.AsSlice(), 0)
		if err == nil && len(back) > 0 {
			if l, err := r.routes.LinkByIndex(back[0].LinkIndex); err == nil {
				r.packet.InInterface = l.Attrs().Name
			}
		}
	}

	return nil
}

// follow traces a connection to the service, or to one endpoint. It returns nil if the packet did
// not reach this node, which is a fault.
func (r *runner) follow(ctx context.Context, to *servicemodel.Candidate) (*livetrace.Trace,
	error) {
	s, err := r.socket(ctx, to)
	if err != nil {
		return nil, err
	}
	defer s.close() //nolint:errcheck // nothing is lost
	t, err := livetrace.Open(ctx, &livetrace.Config{NetNS: r.node.NetNS(),
		Filter: livetrace.Filter{Src: s.src.Addr(), SrcPort: s.src.Port(), Dst: s.dst,
			Protocol: r.To.Protocol}})
	if err != nil {
		return nil, err
	}
	defer t.Close() //nolint:errcheck // the table belongs to the socket
	if err := s.begin(); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, traceLimit)
	defer cancel()
	traced, err := t.Next(limited)
	if ctx.Err() == nil && errors.Is(limited.Err(), context.DeadlineExceeded) && traced == nil {
		r.report.add(&Fault{ClientRoute, fmt.Sprintf("the packets of %v to %v do not reach this "+
			"node", s.src.Addr(), s.dst), "ip route get and nft list ruleset, in the network " +
			"namespace of the client"})
		return nil, nil
	}

	return traced, err
}

// endpoints connects to each endpoint, and traces the packets to those that do not answer.
func (r *runner) endpoints(ctx context.Context) error {
	silent, l := r.silent(&r.decision)
	l = append(l, r.decision.Candidates...)
	if len(l) > mostEndpoints {
		r.report.note("%d of %d endpoints were asked", mostEndpoints, len(l))
		l = l[:mostEndpoints]
	}

	results, links := make([]result, len(l)), make([]link, len(l))
	var all sync.WaitGroup
	for i := range l {
		all.Go(func() { results[i] = r.ask(ctx, &l[i]) })
		all.Go(func() { links[i] = r.link(l[i].Endpoint.Addr()) })
	}

	all.Wait()

	answered, traces, alike := 0, 0, map[Kind][]netip.AddrPort{}
	for i := range l {
		if results[i].answered {
			answered++
			r.report.add(results[i].fault)
		} else if r.report.ofEndpoint() && (results[i].silent || results[i].refused) {
			traces++
			fault, err := r.judgeSilence(ctx, &l[i], &results[i], &links[i], traces <= mostTraces)
			if err != nil {
				return err
			}
			if fault != nil {
				alike[fault.Kind] = append(alike[fault.Kind], l[i].Endpoint)
			}
			r.report.add(fault)
		}

		r.report.add(links[i].duplicate())
		r.report.Endpoints = append(r.report.Endpoints,
			Endpoint{Endpoint: l[i].Endpoint, Says: results[i].says})
	}

	r.report.merge(Silent, "do not answer", alike[Silent], len(l))
	r.report.merge(NotListening, "refuse: nothing listens there", alike[NotListening], len(l))
	for i, c := range silent[:min(len(silent), len(l))] {
		r.report.Endpoints[i].Says += ", " + c.Status(time.Now())
		r.report.note("%v gets no new connections until it answers this node, which asks it again "+
			"after at most a minute, or is let in on trial after 30 s to 30 min", c.Endpoint)
	}

	if answered > 0 && r.To.Protocol == servicemodel.TCP {
		r.report.note("not tested: answers of full size; fetch a large page")
	}
	if answered == len(l) {
		r.report.ok("each endpoint answers when it is asked alone")
	}
	return nil
}

// silent returns the ejected endpoints of a decision's service. The candidates say how to send
// packets to these endpoints.
func (r *runner) silent(d *servicemodel.Decision) ([]silence.Change, []servicemodel.Candidate) {
	of := silence.Of(d.Frontend, r.Silent)
	out := make([]servicemodel.Candidate, len(of))
	for i, c := range of {
		for _, other := range d.Candidates { // a client that is the endpoint is masqueraded, too
			if out[i] = other; other.Endpoint.Addr() != r.packet.Src.Addr() {
				break
			}
		}

		out[i].Endpoint = c.Endpoint
	}

	return of, out
}

// judgeSilence judges why an endpoint does not answer. If follow is true, it traces a packet.
func (r *runner) judgeSilence(ctx context.Context, to *servicemodel.Candidate, got *result,
	l *link, follow bool) (*Fault, error) {
	if r.To.Protocol == servicemodel.UDP && !got.refused {
		r.report.note("%v said nothing, as UDP endpoints may", to.Endpoint)
		return nil, nil
	}

	says, faults, answers := fmt.Sprintf("%v does not answer", to.Endpoint), []*Fault{nil}, false
	if follow {
		traced, err := r.follow(ctx, to)
		switch {
		case ctx.Err() != nil:
			return nil, err
		case err != nil:
			r.report.note("%v is %s", to.Endpoint, notAsked(err))
		case traced == nil:
			return nil, nil
		default:
			only := servicemodel.Decision{Candidates: []servicemodel.Candidate{*to}}
			if r.Direct {
				only.Candidates[0].Masquerade = false
			}
			faults[0], answers = r.judgeTrace(traced, only), traced.Answer != nil
			says += fmt.Sprintf(": the packet left by %s, and no answer came back", traced.Out)
		}
	}

	for _, f := range append(faults, l.duplicate(), l.neighbour(to.Endpoint.Addr())) {
		if f != nil {
			return f, nil
		}
	}

	if got.refused {
		return &Fault{NotListening, fmt.Sprintf("%v refuses: nothing listens there", to.Endpoint),
			"see whether the program runs and listens at this port (ss -ltn in the pod), and " +
				"whether the service's targetPort is right"}, nil
	}
	if answers {
		return nil, nil // this time
	}
	return &Fault{Silent, says, "see whether the pod hangs or drops packets (nft list ruleset in " +
		"the pod), and whether its answers come through this node" + r.strict(l.name)}, nil
}

// strict names the links where rp_filter may drop the answers of an endpoint and the ARP requests
// for them, which the kernel does not count. out is the link to the endpoint.
func (r *runner) strict(out string) string {
	all, err := r.routes.Settings(unix.AF_INET)
	if err != nil || !r.To.Addr.Is4() {
		return ""
	}
	everywhere, on := 0, []string(nil)
	for _, s := range all {
		if s.Link == rtnetlink.AllLinks {
			everywhere = s.ReversePath
		}
	}

	for _, s := range all {
		l, err := r.routes.LinkByIndex(s.Link)
		if max(s.ReversePath, everywhere) == 1 && s.Link > 0 && err == nil {
			if a := l.Attrs(); a.Name != out && a.Flags&net.FlagLoopback == 0 {
				on = append(on, a.Name)
			}
		}
	}

	if len(on) == 0 {
		return ""
	}
	return fmt.Sprintf("; by another link than %s, rp_filter refuses them (it is on at %s)", out,
		some(on))
}

// flows counts the connections of clients by endpoint, and looks for stale connections.
func (r *runner) flows(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, flowsLimit)
	defer cancel()
	index := flows.NewIndex(r.Table, r.Here)
	counts, stale := map[netip.AddrPort]*Endpoint{}, map[staleFlow]int{}
	for i := range r.report.Endpoints {
		counts[r.report.Endpoints[i].Endpoint] = &r.report.Endpoints[i]
	}
	filter := conntrack.Filter{Protocol: conntrack.Protocol(r.To.Protocol), OriginalDst: r.To.Addr,
		OriginalDstPort: r.To.Port}
	for f, err := range r.table.Flows(limited, filter) {
		if limited.Err() != nil && ctx.Err() == nil {
			r.report.note("the table of connections is too large to be read in %v", flowsLimit)
			return nil
		}

		if err != nil {
			return err
		}
		if e := counts[f.Reply.Src]; e != nil {
			if f.Original.Src.Addr() != r.report.Client { // which has connections of earlier runs
				e.count(&f)
			}
		} else if at := index.Frontend(&f); at != nil && !index.Serves(at, &f) && living(&f) {
			stale[staleFlow{f.Original.Src.Addr(), f.Original.Dst, f.Reply.Src}]++
		}
	}

	for _, s := range slices.SortedFunc(maps.Keys(stale), staleFlow.compare) {
		r.report.add(s.fault(r.To.Protocol, stale[s]))
	}

	return nil
}

// States of TCP in conntrack (enum tcp_conntrack).
const (
	tcpSynSent  conntrack.TCPState = 1
	tcpTimeWait conntrack.TCPState = 7
	tcpClosed   conntrack.TCPState = 8
)

// living reports whether a flow can carry packets of its client. A connection without an answer
// cannot: its client tries again.
func living(f *conntrack.Flow) bool {
	return f.Protocol != conntrack.TCP ||
		f.TCP < tcpTimeWait && f.Status&conntrack.StatusSeenReply != 0
}

// count counts a flow of a client.
func (e *Endpoint) count(f *conntrack.Flow) {
	switch {
	case f.Protocol == conntrack.TCP && f.TCP == tcpClosed:
		e.Reset++
	case f.Status&conntrack.StatusSeenReply != 0:
		e.Answered++
	default:
		e.Begun++
	}
}

// link reads what the node knows about the next hop to an address, and sends an ARP request for the
// next hop.
func (r *runner) link(to netip.Addr) (l link) {
	l.hop = to
	conn, err := rtnetlink.Open(r.node) // r.routes is for one goroutine
	if err != nil {
		return l
	}
	defer conn.Close()
	routes, err := conn.RouteGet(to.AsSlice(), 0)
	if err != nil || len(routes) == 0 || routes[0].Type == unix.RTN_LOCAL {
		return l
	}
	if via, ok := netip.AddrFromSlice(routes[0].Gw); ok {
		l.hop = via.Unmap()
	}
	out, err := conn.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return l
	}
	l.name = out.Attrs().Name
	all, err := conn.NeighList()
	if err != nil {
		return l
	}
	for _, n := range all {
		if at, ok := netip.AddrFromSlice(n.IP); ok && at.Unmap() == l.hop &&
			n.LinkIndex == out.Attrs().Index {
			l.known, l.failed = n.HardwareAddr, n.State&unix.NUD_FAILED != 0
		}
	}

	if l.hop.Is4() && out.Attrs().RawFlags&(unix.IFF_NOARP|unix.IFF_LOOPBACK) == 0 {
		src, _ := netip.AddrFromSlice(routes[0].Src)
		err := r.node.Do(func() (err error) {
			l.answers, err = askARP(out.Attrs(), src.Unmap(), l.hop)
			return err
		})
		l.asked = err == nil
	}

	return l
}
