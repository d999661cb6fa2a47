package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/internal/rawnl"
)

const (
	// tombstoneTime is the time that the node answers packets of a cut connection with resets.
	tombstoneTime = 30 * time.Second
	// tombstonePort is the port of the node to which tombstones translate packets of clients. IANA
	// has not assigned the port, so no program listens there. A listener would answer with a reset,
	// too.
	tombstonePort = 4
	// cutTries limits the cuts of a connection that continues after a cut.
	cutTries = 4
)

// cutting ends TCP connections so that both peers notice at once, and counts the connections in a
// result.
//
// If only the flow is deleted, the peers may wait for a long time. The client's next packet opens a
// new connection to a different endpoint, and that endpoint resets it. But a client that waits for
// data may send nothing for hours. If the service has no endpoint left, the answer to its packet is
// an ICMP error, which an established connection ignores. If the service is gone, its traffic is
// dropped, or nf_conntrack_tcp_loose is off, there is no answer. So a cut replaces the flow with
// two tombstones: flows in state CLOSE that translate the packets of either peer to the node
// itself. The node's TCP has no such connection and answers with a reset, whose sequence numbers it
// takes from the packet. The cut then makes both peers send, by segments that TCP must answer with
// an acknowledgement (see RFC 5961). The kernel sends the reset back along the tombstone, so the
// reset comes from the address that the peer expects.
//
// A packet can arrive before the tombstones exist and create the flow again. Usually this flow has
// a different endpoint, which does not know the connection and resets it. But IPVS has its own
// connection table: the flow gets the same endpoint, and the connection would continue. The cut
// then also replaces that flow.
//
// A new connection with the same ports replaces a tombstone at once (a SYN in state CLOSE).
type cutting struct {
	table *Table
	// the node's address towards each peer, invalid if there is none
	nodes  map[netip.Addr]netip.Addr
	raw    map[string]net.PacketConn // sockets for IP packets, by network
	result *CleanResult
	// unreached is the first reason why a peer could not be made to send. The flows are deleted
	// anyway.
	unreached error
}

func newCutting(t *Table, result *CleanResult) *cutting {
	return &cutting{table: t, nodes: map[netip.Addr]netip.Addr{},
		raw: map[string]net.PacketConn{}, result: result}
}

func (c *cutting) close() {
	for _, conn := range c.raw {
		conn.Close()
	}
}

// cut cuts connections, on a thread in the namespace of the table because it opens sockets.
func (c *cutting) cut(ctx context.Context, flows []Flow) error {
	err := c.table.ns.Do(func() error { return c.cutAll(ctx, flows) })
	if err != nil {
		return fmt.Errorf("cut connections: %w", err)
	}
	return nil
}

// cutAll cuts connections, and retries connections that a packet created again before their
// tombstones existed.
func (c *cutting) cutAll(ctx context.Context, batch []Flow) error {
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

// target is a connection to cut.
type target struct {
	flow    Flow // the flow when it was found stale
	now     Flow // the flow that is in the table now
	again   bool // it was already deleted and counted
	missing bool // it had already ended, or changed into another
	// stones are its tombstones by side, nil where there is none.
	stones [2]*Flow
}

// The sides of a connection: a tombstone handles the packets of its client or of its endpoint.
const (
	clientSide = iota
	endpointSide
)

// replace replaces the flows with tombstones and makes their peers send. It returns the flows that
// were created again, by a packet that came before the client's tombstone existed.
func (c *cutting) replace(ctx context.Context, targets []target) (survivors []Flow, err error) {
	var b rawnl.Batch
	var parts []part
	for i := range targets {
		t := &targets[i]
		appendDelete(&b, &t.now)
		parts = append(parts, part{t, -1})
		t.stones = c.tombstones(&t.flow)
		for side, stone := range t.stones {
			if stone != nil {
				appendCreate(&b, stone)
				parts = append(parts, part{t, side})
			}
		}
	}

	refusals, err := c.table.sendAll(ctx, &b)
	if err != nil {
		return nil, err
	}
	for _, e := range refusals {
		switch p := parts[e.Index]; {
		case p.side >= 0:
			if e.Errno != syscall.EEXIST {
				c.fail(p.stones[p.side], e)
			} else if p.side == clientSide && !p.missing {
				survivors = append(survivors, p.flow)
			}

			p.stones[p.side] = nil
		case e.Errno == syscall.ENOENT:
			p.missing = true
		default:
			return nil, fmt.Errorf("%s: %w", p.flow, e)
		}
	}

	if err := c.finish(ctx, targets); err != nil {
		return nil, err
	}
	return survivors, nil
}

// part identifies a message: the deletion of a flow (side -1) or one of its tombstones.
type part struct {
	*target
	side int
}

// finish counts the connections, and makes the peers of the deleted connections send. A flow that
// had already ended needs no tombstones, so finish removes them.
func (c *cutting) finish(ctx context.Context, targets []target) error {
	var undo rawnl.Batch
	for _, t := range targets {
		switch {
		case t.again: // already counted
		case t.missing:
			c.result.Missing++
		default:
			c.result.Deleted++
		}

		for side, stone := range slices.Backward(t.stones[:]) {
			switch {
			case stone == nil:
			case t.missing:
				appendDelete(&undo, stone)
			case c.probe(stone) && side == clientSide:
				c.result.Reset++
			}
		}
	}

	if undo.Len() == 0 {
		return nil
	}
	_, err := c.table.sendAll(ctx, &undo)
	return err
}

// remade returns the connections that continue because a packet of either peer created the flow
// again, with the same endpoint. A packet of the endpoint creates a backwards flow, because IPVS
// translates without telling conntrack the direction of the connection.
func (t *Table) remade(ctx context.Context, flows []Flow) (on []target, err error) {
	err = t.Reread(ctx, flows, func(i int, now *Flow) {
		if now.TCP == TCPEstablished && leadsTo(now, &flows[i].Original) == flows[i].Reply.Src {
			on = append(on, target{flow: flows[i], now: *now, again: true})
		}
	})
	return on, err
}

func wantAll(*Flow) bool { return true }

// leadsTo returns the destination to which the flow sends a packet with this tuple, in either
// direction.
func leadsTo(f *Flow, packet *Tuple) netip.AddrPort {
	if f.Original.Src == packet.Src && f.Original.Dst == packet.Dst {
		return f.Reply.Src
	}
	return f.Original.Src
}

// tombstones returns the tombstones for a connection.
func (c *cutting) tombstones(f *Flow) (stones [2]*Flow) {
	if node := c.node(f.Original.Src.Addr()); node.IsValid() {
		stones[clientSide] = tombstone(f, f.Original, f.Reply.Zone,
			netip.AddrPortFrom(node, tombstonePort))
	}

	// The endpoint sends to the client, or to an address of the node that represents the client.
	node := f.Reply.Dst.Addr()
	if !f.masqueraded() {
		node = c.node(f.Reply.Src.Addr())
	}
	if node.IsValid() {
		// With the peer's port, the many connections of one endpoint remain distinct.
		stones[endpointSide] = tombstone(f, f.Reply, f.Original.Zone,
			netip.AddrPortFrom(node, f.Reply.Dst.Port()))
	}

	return stones
}

// isTombstone reports whether f is a tombstone for the packets of a client.
func isTombstone(f *Flow) bool {
	return f.Protocol == TCP && f.Status&StatusFixedTimeout != 0 &&
		f.Reply.Src.Port() == tombstonePort
}

// tombstone returns a flow that sends packets with this tuple to the node.
func tombstone(f *Flow, tuple Tuple, replyZone uint16, node netip.AddrPort) *Flow {
	return &Flow{
		Protocol: TCP,
		Original: tuple,
		Reply:    Tuple{Src: node, Dst: tuple.Src, Zone: replyZone},
		Status:   StatusSeenReply | StatusAssured | StatusFixedTimeout,
		Timeout:  tombstoneTime,
		Mark:     f.Mark,
		TCP:      tcpClose,
	}
}

// probe makes a peer send a packet that matches the tombstone. The two segments look like replies
// to that peer. One answer is enough, but the peer may ignore either segment: see synAck and stray.
func (c *cutting) probe(stone *Flow) bool {
	for _, packet := range [][]byte{synAck(stone.Reply.Src, stone.Reply.Dst),
		stray(stone.Reply.Src, stone.Reply.Dst)} {
		if err := c.send(packet, stone.Reply.Dst.Addr()); err != nil {
			c.fail(stone, err)
			return false
		}
	}

	return true
}

// node returns the node's address towards a peer. It is invalid if the node has no route to the
// peer.
func (c *cutting) node(peer netip.Addr) netip.Addr {
	node, ok := c.nodes[peer]
	if !ok {
		var err error
		if node, err = source(peer); err != nil && !unreachable(err) && c.unreached == nil {
			c.unreached = fmt.Errorf("cut connections: find the way to %s: %w", peer, err)
		}
		c.nodes[peer] = node
	}

	return node
}

// source returns the address from which the node would send packets to the peer. It connects a UDP
// socket, which sends nothing.
func source(peer netip.Addr) (netip.Addr, error) {
	to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(peer, tombstonePort))
	conn, err := net.DialUDP("udp", nil, to)
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr(), nil
}

// send sends a packet with its IP header: IPPROTO_RAW implies IP_HDRINCL (raw(7)) and IPV6_HDRINCL
// (inet6_create in net/ipv6/af_inet6.c).
func (c *cutting) send(packet []byte, to netip.Addr) error {
	network := "ip4:255" // IPPROTO_RAW
	if to.Is6() {
		network = "ip6:255"
	}
	conn := c.raw[network]
	if conn == nil {
		var err error
		if conn, err = net.ListenPacket(network, ""); err != nil {
			return err
		}
		c.raw[network] = conn
	}

	_, err := conn.WriteTo(packet, &net.IPAddr{IP: to.AsSlice()})
	return err
}

// unreachable reports whether the node has no route to a peer, or a route that refuses packets:
// EINVAL from a blackhole, EACCES from a prohibition. The peer then cannot be made to send, and its
// packets get no answer. A socket that cannot be opened says nothing about the route.
func unreachable(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op != "listen" && slices.ContainsFunc([]syscall.Errno{syscall.ENETUNREACH,
		syscall.EHOSTUNREACH, syscall.EINVAL, syscall.EACCES},
		func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// fail records the reason why a peer could not be made to send.
func (c *cutting) fail(stone *Flow, err error) {
	if c.unreached == nil && !unreachable(err) {
		c.unreached = fmt.Errorf("cut connections: make %s send: %w", stone.Original.Src, err)
	}
}
