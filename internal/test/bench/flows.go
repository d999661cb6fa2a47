package main

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"runtime"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/fleet"
	"github.com/kernlb/kernlb/servicemodel"
)

// flowReport is the measurement of cleaning flows: one UDP endpoint of one service is replaced,
// and the flows to it are deleted.
type flowReport struct {
	InTable   int     `json:"flows_in_table"`   // of the namespace
	OnMachine int     `json:"flows_on_machine"` // a walk over the table passes all of them
	IdleDumps int     `json:"dumps_without_udp_change"`
	ApplyMs   float64 `json:"apply_ms"` // the whole apply
	CleanMs   float64 `json:"clean_ms"` // the cleaning alone
	MB        float64 `json:"allocated_mb"`
	Seen      int     `json:"flows_seen"`
	Deleted   int     `json:"flows_deleted"`
}

const (
	flowServices  = 100
	flowEndpoints = 10
	// namespaceShare is the maximum number of flows that a namespace gets. It is below the default
	// of nf_conntrack_max, which only the initial namespace can raise. Further flows go to other
	// namespaces. All namespaces share one hash table, so a walk over it costs the same.
	namespaceShare = 250_000
)

// cleanFlows measures cleaning with the requested number of flows, a quarter of them UDP. It runs
// in the namespace of the bench.
func (b *benchmark) cleanFlows(r *flowReport) error {
	table, err := conntrack.Open(nil)
	if err != nil {
		return err
	}
	defer table.Close()
	if r.InTable, err = b.fill(table, b.flows); err != nil {
		return err
	}
	for r.OnMachine = r.InTable; r.OnMachine < b.flows; {
		ns, err := netnstest.NewNS("flows")
		if err != nil {
			return err
		}
		defer ns.Close()
		more, err := conntrack.Open(&conntrack.Config{NetNS: ns.NetNS()})
		if err != nil {
			return err
		}
		n, err := b.fill(more, min(namespaceShare, b.flows-r.OnMachine))
		if err = errors.Join(err, more.Close()); err != nil {
			return err
		}
		r.OnMachine += n
	}

	backend, err := b.open[b.name]()
	if err != nil {
		return err
	}
	defer backend.Close()
	if err := b.cleanOnce(table, backend, r); err != nil {
		return err
	}
	_, err = backend.Cleanup(b.ctx)
	return err
}

// fill adds n flows to a table, as far as they fit.
func (b *benchmark) fill(table *conntrack.Table, n int) (int, error) {
	created, err := table.Create(b.ctx, someFlows(n))
	if errors.Is(err, conntrack.ErrTableFull) {
		err = nil
	}
	return created, err
}

// someFlows yields n flows, a quarter of them UDP, to the services in turn and to their endpoints.
func someFlows(n int) iter.Seq2[conntrack.Flow, error] {
	return func(yield func(conntrack.Flow, error) bool) {
		for i := range n {
			f := conntrack.Flow{Protocol: conntrack.TCP, TCP: conntrack.TCPEstablished,
				Timeout: time.Hour,
				Status:  conntrack.StatusSeenReply | conntrack.StatusAssured}
			if i%4 == 0 {
				f.Protocol, f.TCP = conntrack.UDP, 0
			}
			client := netip.AddrPortFrom(fleet.Addr(20, 0, i>>8), uint16(1024+i&0xff))
			service, endpoint := i/4%flowServices, i/4/flowServices%flowEndpoints
			f.Original = conntrack.Tuple{Src: client,
				Dst: netip.AddrPortFrom(fleet.Addr(10, 97, service), 53)}
			f.Reply = conntrack.Tuple{
				Src: netip.AddrPortFrom(fleet.Addr(10, 98, service*256+endpoint), 5353),
				Dst: client}
			if !yield(f, nil) {
				return
			}
		}
	}
}

// flowState returns the destination services of the flows. If replaced is set, the first endpoint
// of the first service was replaced.
func (b *benchmark) flowState(replaced bool, port uint16) servicemodel.State {
	s := servicemodel.State{}.WithNode(b.state.Node())
	for i := range flowServices {
		svc := &servicemodel.Service{Name: fleet.Fleet{}.Name(i),
			ClusterIPs: []netip.Addr{fleet.Addr(10, 97, i)}, Ports: []servicemodel.ServicePort{
				{Name: "udp", Protocol: servicemodel.UDP, Port: 53},
				{Name: "tcp", Protocol: servicemodel.TCP, Port: 53}}}
		var eps []servicemodel.Endpoint
		for j := range flowEndpoints {
			e := servicemodel.Endpoint{Addr: fleet.Addr(10, 98, i*256+j),
				Ports: []servicemodel.EndpointPort{
					{Name: "udp", Protocol: servicemodel.UDP, Port: 5353},
					{Name: "tcp", Protocol: servicemodel.TCP, Port: port}}}
			if replaced && i == 0 && j == 0 {
				e.Addr = fleet.FreshAddr(i)
			}
			eps = append(eps, e)
		}

		s = s.WithService(svc).WithEndpoints(svc.Name, eps)
	}

	return s
}

// cleanOnce replaces the first endpoint of a service.
func (b *benchmark) cleanOnce(table flows.Table, backend backends.Backend,
	r *flowReport) error {
	keeper, err := flows.New(table, nil)
	if err != nil {
		return err
	}
	e := dataplane.New(backend, &dataplane.Config{Flows: keeper})

	// The first apply checks all flows.
	first, err := e.Apply(b.ctx, b.flowState(false, 5353))
	if first == nil {
		return err
	}
	for next := first.Settle; err == nil && next > 0; next, err = e.Settle(b.ctx) {
		select {
		case <-b.ctx.Done():
			return b.ctx.Err()
		case <-time.After(next):
		}
	}

	if err != nil {
		return err
	}
	before := keeper.Totals()
	if _, err := e.Apply(b.ctx, b.flowState(false, 5354)); err != nil { // endpoints of TCP change
		return err
	}
	r.IdleDumps = keeper.Totals().Dumps - before.Dumps
	next := b.flowState(true, 5354)
	var mem runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&mem)
	allocated := mem.TotalAlloc
	start := time.Now()
	_, err = e.Apply(b.ctx, next)
	r.ApplyMs = ms(time.Since(start))
	runtime.ReadMemStats(&mem)
	r.MB = float64(mem.TotalAlloc-allocated) / (1 << 20)
	after := keeper.Totals()
	r.CleanMs = ms(after.Duration - before.Duration)
	r.Seen, r.Deleted = after.Seen-before.Seen, after.Deleted-before.Deleted
	return err
}

func (r *flowReport) String() string {
	return fmt.Sprintf(", %d flows in the table, %d on the machine; %d "+
		"dumps where no UDP endpoint changed\ncleaned in %.1f ms, %.1f MB allocated, %d flows "+
		"seen, %d deleted", r.InTable, r.OnMachine, r.IdleDumps, r.CleanMs, r.MB, r.Seen, r.Deleted)
}
