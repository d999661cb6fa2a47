package iptables

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// lackingExtension is a socket to a kernel that lacks a match or target for a family.
type lackingExtension struct {
	rawnl.Socket
	f    *nft.Family
	name string
}

func (s lackingExtension) Send(p []byte) error {
	const header = 16 // its size; the family is the first byte of the message
	p = bytes.Clone(p)
	for m := p; len(m) > header; {
		n := int(binary.NativeEndian.Uint32(m)+3) &^ 3
		if m[header] == s.f.NFProto {
			none := bytes.Repeat([]byte("-"), len(s.name))
			copy(m, bytes.ReplaceAll(m[:n], []byte(s.name+"\x00"), append(none, 0)))
		}
		m = m[n:]
	}
	return s.Socket.Send(p)
}

// lack returns a backend for a kernel that lacks an extension for a family.
func lack(t *testing.T, f *nft.Family, name string) *backend {
	t.Helper()
	_, ns, _ := opened(t, Config{})
	b := ok(openWith(ns.Fd(), rawnl.Config{
		Wrap: func(s rawnl.Socket) rawnl.Socket { return lackingExtension{s, f, name} }}))(t)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	require.NoError(t, b.kernel.probe(t.Context()))
	return b
}

// Services that need a match that the kernel lacks are refused, and no others.
func TestAKernelWithoutAMatch(t *testing.T) {
	t.Parallel()
	for name, lacks := range map[string]lacking{"recent": {recent: true}, "sctp": {sctp: true},
		"bpf": {bpf: true}} {
		require.Equal(t, lacks, lack(t, nft.IPv6, name).kernel.lacks, name)
	}
}

// If the kernel cannot have chains of a family, services of the other one still work. The result
// names the family.
func TestAKernelWithoutAFamily(t *testing.T) {
	t.Parallel()
	for i, f := range nft.Families {
		b := lack(t, f, "REJECT")
		require.ErrorIs(t, b.kernel.lacks.family, dataplane.ErrMissingModule)
		require.Equal(t, f, b.kernel.lacks.lacking)
		require.False(t, b.kernel.lacks.recent)

		node := testNode()
		node.ServiceCIDRs = prefixes("10.96.0.0/12", "fd00:10:96::/112")
		s := webService().WithNode(node)
		svc := s.Service(svcName("web"))
		svc.ExternalTrafficPolicy, svc.HealthCheckNodePort = sm.PolicyLocal, 32000
		s = s.WithService(svc)
		e := dataplane.New(b, nil)
		for range 2 {
			r := applied(t, e, s)
			require.Len(t, r.Refused, 1)
			require.Equal(t, f.Model, r.Refused[0].Family)
			require.ErrorIs(t, r.Refused[0].Err, dataplane.ErrUnsupported)
			require.ErrorContains(t, r.Refused[0].Err, "REJECT")
		}
		node.OnlyFamily = nft.Families[1-i].Model
		held := resolve(t, nil, s.WithNode(node))
		o := observation(t, b)
		require.Empty(t, o.Drift)
		requireSameTable(t, held, o.Table)
		requireIntegrity(t, b, dataplane.Intact)
		whole, _, err := b.look(t.Context())
		require.NoError(t, err)
		require.True(t, whole)

		require.NoError(t, b.judge(t.Context()))
		b.kernel.lacks.lacking = nil
		require.ErrorIs(t, b.judge(t.Context()), dataplane.ErrMissingModule)
	}
}

// A node that serves one family has nothing of the other: no chain, no table, no jump.
func TestTheFamiliesOfAnInstanceChange(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	second := ok(openBackend(&Config{NetNS: ns.Fd()}))(t)
	t.Cleanup(func() { second.Close() })
	writers := []*dataplane.Engine{dataplane.New(b, nil), dataplane.New(second, nil)}
	for i, only := range []sm.Family{sm.IPv4, 0, sm.IPv6, 0, sm.IPv4, sm.IPv6, sm.IPv4} {
		node := testNode()
		node.OnlyFamily = only
		s := webService().WithNode(node)
		r := applied(t, writers[i%2], s) // each finds what the other one left
		require.Empty(t, r.Drift)
		whole, _, err := []*backend{b, second}[i%2].look(t.Context())
		require.NoError(t, err)
		require.True(t, whole)
		o := observation(t, b)
		require.Empty(t, o.Drift)
		requireSameTable(t, resolve(t, nil, s), o.Table)
		read, _, err := b.kernel.readAll(t.Context(), b.l)
		require.NoError(t, err)
		for j := range read.tables {
			f := table(j).family()
			require.Equal(t, only == 0 || only == f.Model, read.tables[j], "%v of %v",
				table(j), only)
		}
		require.Len(t, b.l.versionsOf(read), 1)
		applied(t, writers[i%2], s.WithoutService(svcName("web")))
		applied(t, writers[i%2], s)
	}
}
