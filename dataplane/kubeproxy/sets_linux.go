package kubeproxy

import (
	"context"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// IP sets use our own transport, because the methods for them in github.com/vishvananda/netlink
// v1.3.1 panic on errors that are not an errno, and print attributes that they do not know.

// setRequest is a request about an IP set.
func setRequest(cmd uint8, verb, name string) *rawnl.Batch {
	b := &rawnl.Batch{}
	b.Message(rawnl.SubsysIPSet, cmd, 0, unix.NFPROTO_IPV4, 0,
		rawnl.Object{Verb: verb, Kind: "IP set", Name: name})
	b.U8(nl.IPSET_ATTR_PROTOCOL, nl.IPSET_PROTOCOL)
	b.Text(nl.IPSET_ATTR_SETNAME, name)
	return b
}

// readSets reads the IP sets. A kernel without them says that it does not know the request.
func (k *kernel) readSets(ctx context.Context, v *virtual) error {
	for _, name := range setNames() {
		entries := map[VirtualServer]bool{}
		err := k.nf.Dump(ctx, setRequest(nl.IPSET_CMD_LIST, "list", name),
			func(m rawnl.Message) error { return readEntries(m.Attrs, entries) })
		switch {
		case err == nil:
			v.sets[name] = entries
		case errors.Is(err, unix.EINVAL):
			return nil
		case !errors.Is(err, unix.ENOENT):
			return err
		}
	}
	return nil
}

// readEntries adds the entries of a part of a set.
func readEntries(attrs []byte, entries map[VirtualServer]bool) error {
	it := rawnl.Attrs(attrs)
	for it.Next() {
		if it.Type() != nl.IPSET_ATTR_ADT {
			continue
		}
		list := it.Nest()
		for list.Next() {
			e, err := readEntry(list.Nest())
			if err != nil {
				return err
			}
			entries[e] = true
		}
		if err := list.Err(); err != nil {
			return err
		}
	}
	return it.Err()
}

// readEntry reads an entry: its protocol, address and port, some of which may be missing.
func readEntry(it rawnl.AttrIter) (VirtualServer, error) {
	var s VirtualServer
	var addr netip.Addr
	var port uint16
	for it.Next() {
		switch it.Type() {
		case nl.IPSET_ATTR_IP:
			inner := it.Nest()
			for inner.Next() {
				addr, _ = netip.AddrFromSlice(inner.Data())
			}
		case nl.IPSET_ATTR_PORT:
			port = it.U16()
		case nl.IPSET_ATTR_PROTO:
			s.Protocol = ipvsnl.Protocol(it.U8()).String()
		}
	}
	s.Address = netip.AddrPortFrom(addr, port)
	return s, it.Err()
}
