package rawnltest

import (
	"bytes"
	"slices"
)

// Without returns a socket to a kernel that lacks an expression, match or target of nf_tables for a
// family, such as NFPROTO_IPV4.
func Without(s Socket, family uint8, name string) Socket { return &without{s, family, name} }

type without struct {
	Socket
	family uint8
	name   string
}

// Send changes the name in requests of the family, so that the kernel does not know it.
func (w *without) Send(p []byte) error {
	p = slices.Clone(p)
	for m := p; len(m) > headerLen; {
		n := int(native.Uint32(m)+3) &^ 3
		if m[headerLen] == w.family { // the first byte of the message
			unknown := bytes.Repeat([]byte("-"), len(w.name))
			copy(m, bytes.ReplaceAll(m[:n], []byte(w.name+"\x00"), append(unknown, 0)))
		}

		m = m[n:]
	}

	return w.Socket.Send(p)
}
