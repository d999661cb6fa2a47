package conntrack

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/internal/rawnl"
)

const (
	// tombstoneTime is how long packets of a connection that was cut are answered with resets.
	tombstoneTime = 30 * time.Second
	// tombstonePort is where the node pretends that clients sent their packets to. IANA has not
	// assigned it, so nobody listens; a listener would answer them with a reset, too.
	tombstonePort = 4
	// cutTries bounds how often a connection is cut that goes on meanwhile.
	cutTries = 4
)

// CutResult says what became of connections that were to be cut.
type CutResult struct {
	Deleted int // flows deleted
	Missing int // flows that had ended already, or changed into another
	Reset   int // connections deleted whose client was made to send, and will be reset
}

// Cut ends TCP connections so that both ends learn of it at once. Flows of other protocols are
// deleted only, see [Table.Delete].
//
// Deleting the flow alone leaves the ends waiting. The client's next packet, if there is one, is
// tracked as a new connection and translated to an endpoint that knows nothing of it and resets it;
// but a client that waits for data sends nothing for hours, and its packet is answered by ICMP,
// which an established connection ignores, if the service has no endpoint left, or by nothing if it
// is gone, its traffic dropped or nf_conntrack_tcp_loose off. So Cut puts two tombstones where the
// flow was: flows in state CLOSE that translate what either end sends to the node itself, whose TCP
// has no such connection and answers with a reset, with the right sequence numbers since it takes
// them from the packet. Then it makes both ends speak, by segments that TCP must answer with an
// acknowledgement (see RFC 5961). The kernel takes the reset back along the tombstone, so it comes
// from where the peer expects it.
//
// A packet can be quicker than the tombstones and make a flow again. Usually it leads elsewhere,
// where nobody knows the connection, and brings the reset. With IPVS, which remembers connections
// by itself, it leads to the same endpoint, and the connection would go on: then that flow is cut,
// too.
//
// No healthy connection can be harmed: an end is reset only if its packets run into a tombstone,
// and one is made only where no flow is. A tombstone lives for 30 seconds, and gives way at once to
// a new connection with the same ports (a SYN in state CLOSE). It works with every verdict of the
// service and with every backend and needs no rule; a firewall of the node has to let packets of
// established connections in, and resets out.
//
// Not reset are connections whose packets are offloaded to hardware or go past conntrack, ends that
// reach each other without this node once the flow is gone (direct server return), and ends to
// which the node has no route.
//
// Cut needs CAP_NET_RAW to make the ends speak. Without, it returns [ErrNoPermission] after the
// flows have been deleted: the ends will be reset when they send within 30 seconds.
func (t *Table) Cut(ctx context.Context, flows iter.Seq2[Flow, error]) (CutResult, error) {
	c := cutting{table: t, ends: &ends{ns: t.ns}, nodes: map[netip.Addr]netip.Addr{}}
	defer c.ends.close()
	if err := inBatches(flows, func(batch []Flow) error { return c.cut(ctx, batch) }); err != nil {
		return c.result, fmt.Errorf("cut connections: %w", explain(err))
	}
	if c.unreached != nil {
		return c.result, fmt.Errorf("cut connections: %w", explain(c.unreached))
	}
	return c.result, nil
}

// cutting is a Cut in progress.
type cutting struct {
	table *Table
	ends  *ends
	// the node's address towards each peer, invalid if there is none
	nodes     map[netip.Addr]netip.Addr
	result    CutResult
	unreached error // the first reason why an end could not be made to send
}

// cut cuts connections, and again those that went on meanwhile.
func (c *cutting) cut(ctx context.Context, batch []Flow) error {
	targets := make([]target, len(batch))
	for i := range batch {
		targets[i] = target{flow: batch[i], now: batch[i]}
	}
	for range cutTries {
		survivors, err := c.replace(ctx, targets)
		if err != nil || len(survivors) == 0 {
			return err
		}
		if targets, err = c.table.remade(ctx, survivors); err != nil {
			return err
		}
	}
	return nil
}

// target is a connection that is to be cut.
type target struct {
	flow  Flow // as it was
	now   Flow // as it is in the table
	again bool // it was deleted before, and is counted
}

// tombstones are those of one connection: for what its client sends and for what its endpoint
// sends.
type tombstones struct {
	flows [2]Flow
	there [2]bool
}

const (
	clientSide = iota
	endpointSide
)

// replace puts tombstones in the place of the flows and makes their ends send. It returns those of
// which a packet made a flow before there was a tombstone for what clients send.
func (c *cutting) replace(ctx context.Context, targets []target) (survivors []Flow, err error) {
	stones := make([]tombstones, len(targets))
	var b rawnl.Batch
	var parts []part
	for i := range targets {
		appendDelete(&b, &targets[i].now)
		parts = append(parts, part{target: i, side: -1})
		if targets[i].flow.Protocol != TCP {
			continue
		}
		stones[i] = c.tombstones(&targets[i].flow)
		for side := range stones[i].flows {
			if stones[i].there[side] {
				appendCreate(&b, &stones[i].flows[side])
				parts = append(parts, part{target: i, side: side})
			}
		}
	}
	refusals, err := c.table.sendAll(ctx, &b)
	if err != nil {
		return nil, err
	}
	missing := make([]bool, len(targets))
	for _, e := range refusals {
		p := parts[e.Index]
		switch {
		case p.side >= 0:
			stones[p.target].there[p.side] = false
			if e.Errno != syscall.EEXIST {
				c.fail(&stones[p.target].flows[p.side], e)
			} else if p.side == clientSide && !missing[p.target] {
				survivors = append(survivors, targets[p.target].flow)
			}
		case e.Errno == syscall.ENOENT:
			missing[p.target] = true
		default:
			return nil, fmt.Errorf("%s: %w", targets[p.target].flow, e)
		}
	}
	return survivors, c.finish(ctx, targets, stones, missing)
}

// part says what a message is about: the deletion of a flow (side -1) or one of its tombstones.
type part struct{ target, side int }

// finish counts the connections, and makes the ends of those that were deleted send. A flow that
// was not there any more needs no tombstone: it is taken away again.
func (c *cutting) finish(ctx context.Context, targets []target, stones []tombstones,
	missing []bool) error {
	var undo rawnl.Batch
	for i := range stones {
		s := &stones[i]
		switch {
		case targets[i].again: // it is counted
		case missing[i]:
			c.result.Missing++
		default:
			c.result.Deleted++
		}
		if missing[i] {
			for side := range s.flows {
				if s.there[side] {
					appendDelete(&undo, &s.flows[side])
				}
			}
			continue
		}
		if s.there[endpointSide] {
			c.probe(&s.flows[endpointSide])
		}
		if s.there[clientSide] && c.probe(&s.flows[clientSide]) {
			c.result.Reset++
		}
	}
	if undo.Len() == 0 {
		return nil
	}
	_, err := c.table.sendAll(ctx, &undo)
	return err
}

// remade returns those of the connections that go on: a packet of either end made a flow of them
// again, to the same endpoint. Of a packet of the endpoint it is backwards, since IPVS translates
// without telling conntrack which way the connection goes.
func (t *Table) remade(ctx context.Context, flows []Flow) (on []target, err error) {
	found, err := t.lookup(ctx, flows)
	for i, now := range found {
		if now != nil && now.TCP == TCPEstablished &&
			leadsTo(now, &flows[i].Original) == flows[i].Reply.Src {
			on = append(on, target{flow: flows[i], now: *now, again: true})
		}
	}
	return on, err
}

// leadsTo returns where packets with this tuple go that belong to the flow, in either direction.
func leadsTo(f *Flow, packet *Tuple) netip.AddrPort {
	if f.Original.Src == packet.Src && f.Original.Dst == packet.Dst {
		return f.Reply.Src
	}
	return f.Original.Src
}

// tombstones returns those that a connection gets.
func (c *cutting) tombstones(f *Flow) (s tombstones) {
	if node := c.node(f.Original.Src.Addr()); node.IsValid() {
		s.flows[clientSide] = tombstone(f, f.Original, f.Reply.Zone,
			netip.AddrPortFrom(node, tombstonePort))
		s.there[clientSide] = true
	}
	// The endpoint sends to the client, or to an address of the node that stands for it.
	node := f.Reply.Dst.Addr()
	if !f.Masqueraded() {
		node = c.node(f.Reply.Src.Addr())
	}
	if node.IsValid() {
		// With the peer's port, the many connections of one endpoint stay distinct.
		s.flows[endpointSide] = tombstone(f, f.Reply, f.Original.Zone,
			netip.AddrPortFrom(node, f.Reply.Dst.Port()))
		s.there[endpointSide] = true
	}
	return s
}

// isTombstone reports whether f is a tombstone for what a client sends.
func isTombstone(f *Flow) bool {
	return f.Protocol == TCP && f.Status&StatusFixedTimeout != 0 &&
		f.Reply.Src.Port() == tombstonePort
}

// tombstone returns a flow that takes to the node what is sent as the tuple says.
func tombstone(f *Flow, tuple Tuple, replyZone uint16, node netip.AddrPort) Flow {
	return Flow{
		Protocol: TCP,
		Original: tuple,
		Reply:    Tuple{Src: node, Dst: tuple.Src, Zone: replyZone},
		Status:   StatusSeenReply | StatusAssured | StatusFixedTimeout,
		Timeout:  tombstoneTime,
		Mark:     f.Mark,
		TCP:      TCPClose,
	}
}

// probe makes the end whose packets the tombstone catches send one. The segments look like replies
// to it. One is enough, but either can fail to get an answer: see synAck and stray.
func (c *cutting) probe(stone *Flow) bool {
	for _, packet := range [][]byte{synAck(stone.Reply.Src, stone.Reply.Dst),
		stray(stone.Reply.Src, stone.Reply.Dst)} {
		if err := c.ends.send(packet, stone.Reply.Dst.Addr()); err != nil {
			c.fail(stone, err)
			return false
		}
	}
	return true
}

// node returns the node's address towards a peer, invalid if there is no way to it.
func (c *cutting) node(peer netip.Addr) netip.Addr {
	node, ok := c.nodes[peer]
	if !ok {
		var err error
		if node, err = c.ends.source(peer); err != nil && !unreachable(err) && c.unreached == nil {
			c.unreached = fmt.Errorf("find the way to %s: %w", peer, err)
		}
		c.nodes[peer] = node
	}
	return node
}

// unreachable reports whether there is no way to an end. Then it cannot be made to send, nor does
// anything that it sends get an answer.
func unreachable(err error) bool {
	return errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTUNREACH)
}

// fail notes why an end could not be made to send.
func (c *cutting) fail(stone *Flow, err error) {
	if c.unreached == nil && !unreachable(err) {
		c.unreached = fmt.Errorf("make %s send: %w", stone.Original.Src, err)
	}
}
