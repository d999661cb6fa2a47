package netnstest

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"sync"

	"github.com/kernlb/kernlb/servicemodel"
)

// internet is the far end of the node's default route. For any destination, it answers every TCP,
// UDP and SCTP client as a server named [Net].Internet does. It reads and writes IP packets through
// an AF_PACKET socket without link-layer headers (packet(7)).
type internet struct {
	sock   io.Closer
	reader sync.WaitGroup
}

// Close stops answering.
func (i *internet) Close() error {
	err := i.sock.Close()
	i.reader.Wait()
	return err
}

// The internet keeps no state: its TCP sequence numbers and SCTP tags are constants.
const (
	internetISN = 1000
	internetTag = 1000
)

// internetAnswer returns the IP packet that answers an arriving packet, or nil if there is no
// answer.
func internetAnswer(p packet, transport []byte) []byte {
	var answer []byte
	switch p.Proto {
	case servicemodel.TCP:
		answer = internetTCP(p, transport)
	case servicemodel.UDP:
		answer = internetUDP(p, transport)
	case servicemodel.SCTP:
		answer = internetSCTP(p, transport)
	}

	if answer == nil {
		return nil
	}
	return encodePacket(p.Proto, p.Dst.Addr(), p.Src.Addr(), answer)
}

// internetLine is the line that servers send.
func internetLine(source netip.AddrPort) string {
	return fmt.Sprintf("%s %s\n", Net.Internet, source)
}

// internetTCP accepts a connection. When the handshake is complete, it sends the line and closes.
func internetTCP(p packet, t []byte) []byte {
	if len(t) < tcpHeaderLen {
		return nil
	}
	seq, ack := binary.BigEndian.Uint32(t[4:]), binary.BigEndian.Uint32(t[8:])
	switch p.TCPFlags & (tcpFIN | tcpSYN | tcpRST | tcpACK) {
	case tcpSYN:
		return tcpSegment(p, internetISN, seq+1, tcpSYN|tcpACK, "")
	case tcpACK:
		if ack == internetISN+1 {
			return tcpSegment(p, ack, seq, tcpFIN|tcpPSH|tcpACK, internetLine(p.Src))
		}
	case tcpFIN | tcpACK:
		return tcpSegment(p, ack, seq+1, tcpACK, "")
	}

	return nil
}

func tcpSegment(p packet, seq, ack uint32, flags byte, payload string) []byte {
	b := make([]byte, tcpHeaderLen, tcpHeaderLen+len(payload))
	binary.BigEndian.PutUint16(b[0:], p.Dst.Port())
	binary.BigEndian.PutUint16(b[2:], p.Src.Port())
	binary.BigEndian.PutUint32(b[4:], seq)
	binary.BigEndian.PutUint32(b[8:], ack)
	b[12], b[13] = tcpHeaderLen/4<<4, flags
	binary.BigEndian.PutUint16(b[14:], 1<<15) // window
	return append(b, payload...)
}

func internetUDP(p packet, t []byte) []byte {
	if len(t) < udpHeaderLen {
		return nil
	}
	b := make([]byte, udpHeaderLen)
	binary.BigEndian.PutUint16(b[0:], p.Dst.Port())
	binary.BigEndian.PutUint16(b[2:], p.Src.Port())
	b = append(b, internetLine(p.Src)...)
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	return b
}

func internetSCTP(p packet, t []byte) []byte {
	in, ok := decodeSCTP(t)
	if !ok || in.Chunk != sctpInit {
		return nil
	}
	return sctpPacket{
		SrcPort: in.DstPort, DstPort: in.SrcPort, Tag: in.InitTag,
		Chunk: sctpInitAck, InitTag: internetTag, Cookie: internetLine(p.Src),
	}.encode()
}
