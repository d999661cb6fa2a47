package rawnl

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Messages and attributes of ipset (include/uapi/linux/netfilter/ipset/ip_set.h).
const (
	ipsetCreate = 2
	ipsetAdd    = 9

	ipsetProtocol = 1
	ipsetName     = 2
	ipsetType     = 3
	ipsetRevision = 4
	ipsetFamily   = 5
	ipsetData     = 7
	ipsetIP       = 1
	ipsetIPv4     = 1

	ipsetExists = syscall.Errno(4103) // IPSET_ERR_EXIST
)

// appendIPSet writes an ipset message about the set s.
func appendIPSet(b *Batch, command uint8, flags uint16, verb string) {
	b.Message(SubsysIPSet, command, flags, familyIPv4, 0, Object{Verb: verb, Kind: "ipset",
		Name: "s"})
	b.U8(ipsetProtocol, 6)
	b.Text(ipsetName, "s")
}

func TestIPSetTakesIndependentRequests(t *testing.T) {
	t.Parallel()
	c := dialNew(t)
	var b Batch
	appendIPSet(&b, ipsetCreate, FlagCreate|FlagExcl, "create")
	b.Text(ipsetType, "hash:ip")
	b.U8(ipsetRevision, 0)
	b.U8(ipsetFamily, familyIPv4)
	b.End(b.Nest(ipsetData))
	_, err := c.SendAll(t.Context(), &b)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("the kernel has no ipset: %v", err)
	}
	require.NoError(t, err)

	b.Reset()
	for _, last := range []byte{1, 2, 1, 3, 2} {
		appendIPSet(&b, ipsetAdd, FlagExcl, "add to")
		data := b.Nest(ipsetData)
		ip := b.Nest(ipsetIP)
		b.Attr(ipsetIPv4|AttrNetByteOrder, []byte{192, 0, 2, last})
		b.End(ip)
		b.End(data)
	}
	done, err := c.SendAll(t.Context(), &b)
	require.Equal(t, 5, done)
	require.Equal(t, []int{2, 4}, refused(err),
		"those that are there already; the others were added")
	require.ErrorIs(t, err, ipsetExists)
	require.ErrorContains(t, err, "add to ipset s: ")
}

// Messages and attributes of conntrack (include/uapi/linux/netfilter/nfnetlink_conntrack.h).
const (
	conntrackNew    = 0 // IPCTNL_MSG_CT_NEW
	conntrackGet    = 1 // IPCTNL_MSG_CT_GET
	conntrackDelete = 2 // IPCTNL_MSG_CT_DELETE

	ctTupleOrig  = 1 // CTA_TUPLE_ORIG
	ctTupleReply = 2 // CTA_TUPLE_REPLY
	ctTimeout    = 7 // CTA_TIMEOUT
)

// appendTuple writes one direction of a UDP flow.
func appendTuple(b *Batch, typ uint16, src, dst []byte, sport, dport uint16) {
	tuple := b.Nest(typ)
	ip := b.Nest(1) // CTA_TUPLE_IP
	b.Attr(1, src)  // CTA_IP_V4_SRC
	b.Attr(2, dst)  // CTA_IP_V4_DST
	b.End(ip)
	proto := b.Nest(2)        // CTA_TUPLE_PROTO
	b.U8(1, unix.IPPROTO_UDP) // CTA_PROTO_NUM
	b.U16(2, sport)           // CTA_PROTO_SRC_PORT
	b.U16(3, dport)           // CTA_PROTO_DST_PORT
	b.End(proto)
	b.End(tuple)
}

// appendFlow writes a conntrack message about the flow from a port.
func appendFlow(b *Batch, command uint8, flags uint16, verb string, port uint16) {
	client, server := []byte{192, 0, 2, 1}, []byte{192, 0, 2, 2}
	b.Message(SubsysConntrack, command, flags, familyIPv4, 0, Object{Verb: verb, Kind: "flow"})
	appendTuple(b, ctTupleOrig, client, server, port, 53)
	if command == conntrackNew {
		appendTuple(b, ctTupleReply, server, client, 53, port)
		b.U32(ctTimeout, 60)
	}
}

func TestConntrackFlowsComeAndGo(t *testing.T) {
	t.Parallel()
	c := dialNew(t)
	var b Batch
	for _, port := range []uint16{1000, 1001, 1002} {
		appendFlow(&b, conntrackNew, FlagCreate|FlagExcl, "create", port)
	}
	_, err := c.SendAll(t.Context(), &b)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("the kernel has no conntrack over netlink: %v", err)
	}
	require.NoError(t, err)

	flows := func() (n int) {
		var req Batch
		req.Message(SubsysConntrack, conntrackGet, 0, familyIPv4, 0,
			Object{Verb: "list", Kind: "flows"})
		require.NoError(t, c.DumpOwn(t.Context(), &req, func(m Message) error {
			require.Equal(t, SubsysConntrack, m.Subsys)
			n++
			return nil
		}))
		return n
	}
	require.Equal(t, 3, flows())

	b.Reset()
	for _, port := range []uint16{1000, 9999, 1002} {
		appendFlow(&b, conntrackDelete, 0, "delete", port)
	}
	done, err := c.SendAll(t.Context(), &b)
	require.Equal(t, 3, done)
	require.Equal(t, []int{1}, refused(err))
	require.EqualError(t, err, "delete flow: no such file or directory")
	require.Equal(t, 1, flows())
}
