package netnstest

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

// Chunk types (RFC 9260, section 3.2).
const (
	sctpInit    = 1
	sctpInitAck = 2
	sctpAbort   = 6
)

// sctpCookieParam is the parameter type of a state cookie (RFC 9260, section 3.3.3).
const sctpCookieParam = 7

// Sizes: the common header, a chunk's or parameter's header, and the fixed part of an INIT or INIT
// ACK.
const (
	sctpHeaderLen = 12
	sctpTLVLen    = 4
	sctpInitLen   = 16
)

// sctpPacket is an SCTP packet with one chunk. It contains only the fields that this package uses.
type sctpPacket struct {
	SrcPort, DstPort uint16
	// Tag is the verification tag: zero in an INIT, otherwise the other side's InitTag.
	Tag   uint32
	Chunk uint8
	// InitTag is the sender's tag, in an INIT and an INIT ACK.
	InitTag uint32
	// Cookie is the state cookie of an INIT ACK.
	Cookie string
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode returns the packet with its checksum.
func (p sctpPacket) encode() []byte {
	b := make([]byte, sctpHeaderLen, 64)
	binary.BigEndian.PutUint16(b[0:], p.SrcPort)
	binary.BigEndian.PutUint16(b[2:], p.DstPort)
	binary.BigEndian.PutUint32(b[4:], p.Tag)
	b = append(b, p.Chunk, 0, 0, 0)
	if p.Chunk == sctpInit || p.Chunk == sctpInitAck {
		b = binary.BigEndian.AppendUint32(b, p.InitTag)
		b = binary.BigEndian.AppendUint32(b, 1<<16)     // receiver window
		b = binary.BigEndian.AppendUint32(b, 1<<16|1)   // one outbound, one inbound stream
		b = binary.BigEndian.AppendUint32(b, p.InitTag) // initial TSN
	}

	if p.Chunk == sctpInitAck {
		b = binary.BigEndian.AppendUint16(b, sctpCookieParam)
		b = binary.BigEndian.AppendUint16(b, uint16(sctpTLVLen+len(p.Cookie)))
		b = append(b, p.Cookie...)
		// The padding of the last parameter counts towards the chunk only if another parameter
		// follows.
	}

	binary.BigEndian.PutUint16(b[sctpHeaderLen+2:], uint16(len(b)-sctpHeaderLen))
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	copy(b[8:], sctpChecksum(b))
	return b
}

// decodeSCTP decodes a packet with a correct checksum; only its first chunk counts.
func decodeSCTP(b []byte) (p sctpPacket, ok bool) {
	if len(b) < sctpHeaderLen+sctpTLVLen || !bytes.Equal(b[8:12], sctpChecksum(b)) {
		return p, false
	}
	p.SrcPort, p.DstPort = binary.BigEndian.Uint16(b[0:]), binary.BigEndian.Uint16(b[2:])
	p.Tag = binary.BigEndian.Uint32(b[4:])
	chunk := b[sctpHeaderLen:]
	p.Chunk = chunk[0]
	length := int(binary.BigEndian.Uint16(chunk[2:]))
	if length < sctpTLVLen || length > len(chunk) {
		return p, false
	}
	if p.Chunk != sctpInit && p.Chunk != sctpInitAck {
		return p, true
	}
	value := chunk[sctpTLVLen:length]
	if len(value) < sctpInitLen {
		return p, false
	}
	p.InitTag = binary.BigEndian.Uint32(value)

	// The servers of this package send no parameter before the cookie.
	if params := value[sctpInitLen:]; len(params) >= sctpTLVLen &&
		binary.BigEndian.Uint16(params) == sctpCookieParam {
		length := int(binary.BigEndian.Uint16(params[2:]))
		p.Cookie = string(params[sctpTLVLen:max(sctpTLVLen, min(length, len(params)))])
	}

	return p, true
}

// sctpChecksum returns the CRC32c of a packet and ignores the content of its checksum field. The
// CRC's bytes are sent lowest first, unlike all other fields of the packet (RFC 9260, appendix A).
func sctpChecksum(b []byte) []byte {
	var zero [4]byte
	crc := crc32.Update(crc32.Update(crc32.Checksum(b[:8], castagnoli), castagnoli, zero[:]),
		castagnoli, b[12:])
	return binary.LittleEndian.AppendUint32(nil, crc)
}
