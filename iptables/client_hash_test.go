package iptables

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"

	sm "github.com/kernlb/kernlb/servicemodel"
)

// The hash in Go and the hash of the program agree in every bit: with a share that just excludes a
// client the program refuses the client, and with the next larger share it accepts the client.
func TestClientHashIsThatOfTheProgramInEveryBit(t *testing.T) {
	t.Parallel()
	for _, f := range []sm.Family{sm.IPv4, sm.IPv6} {
		for _, port := range []bool{false, true} {
			for i, client := range clientsOf(f, port, 200) {
				m := statMatch{kind: statHash, seed: uint32(i), port: port}
				h := clientHash(client, m)
				for _, more := range []uint32{0, 1} {
					m.prob = h>>1 + more
					l, all := bpf.Disassemble(hashProgram(f, m))
					require.True(t, all)
					c := &chooser{t: t, rules: []*bpf.VM{nil, ok(bpf.NewVM(l))(t)}}
					require.Equal(t, more == 1, c.matched(client) == 1, "%v %v", client, m)
				}
			}
		}
	}
}
