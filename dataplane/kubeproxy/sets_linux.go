package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/wait"
)

// IP sets and counters are named objects. The kernel does not delete them while rules refer to
// them.

// Messages and attributes of nfnetlink_acct (include/uapi/linux/netfilter/nfnetlink_acct.h).
const (
	subsysAcct   uint8  = 7 // NFNL_SUBSYS_ACCT
	msgAcctGet   uint8  = 1 // NFNL_MSG_ACCT_GET
	msgAcctDel   uint8  = 3 // NFNL_MSG_ACCT_DEL
	attrAcctName uint16 = 1 // NFACCT_NAME
)

// errSetBusy is the kernel's error for a set to which rules refer (IPSET_ERR_BUSY,
// include/uapi/linux/netfilter/ipset/ip_set.h).
const errSetBusy = unix.Errno(nl.IPSET_ERR_BUSY)

// The time that the cleanup waits for objects to which rules refer, and the interval of its
// attempts. The kernel releases the objects of deleted rules some time after the transaction
// (nf_tables_trans_destroy_work).
const (
	busyLimit = time.Second
	busyPause = 20 * time.Millisecond
)

// counterRequest returns an nfnetlink_acct message about one counter. verb names the operation in
// errors.
func counterRequest(msg uint8, verb, name string) *rawnl.Batch {
	b := &rawnl.Batch{}
	b.Message(subsysAcct, msg, 0, unix.NFPROTO_UNSPEC, 0,
		rawnl.Object{Verb: verb, Kind: "counter", Name: name})
	b.Text(attrAcctName, name)
	return b
}

// readCounters returns the existing counters. A kernel without nfnetlink_acct answers that the
// request is unknown.
func (k *kernel) readCounters(ctx context.Context) ([]string, error) {
	var found []string
	for _, name := range counters {
		_, err := k.nf.Query(ctx, counterRequest(msgAcctGet, "get", name))
		switch {
		case err == nil:
			found = append(found, name)
		case errors.Is(err, unix.EINVAL):
			return nil, nil
		case !errors.Is(err, unix.ENOENT):
			return nil, err
		}
	}

	return found, nil
}

// deleteNamed deletes objects, and returns the names of the deleted objects. It waits until no rule
// refers to an object, but not beyond limit.
func (k *kernel) deleteNamed(ctx context.Context, names []string, limit time.Time,
	request func(name string) *rawnl.Batch) (deleted []string, err error) {
	busy := func(err error) bool {
		return errors.Is(err, errSetBusy) || errors.Is(err, unix.EBUSY)
	}
	var errs []error
	for _, name := range names {
		_, err := k.nf.SendAll(ctx, request(name), nil)
		for busy(err) && time.Now().Before(limit) {
			if err = wait.For(ctx, busyPause); err == nil {
				_, err = k.nf.SendAll(ctx, request(name), nil)
			}
		}

		switch {
		case err == nil || errors.Is(err, unix.ENOENT):
			deleted = append(deleted, name)
		case busy(err):
			errs = append(errs, fmt.Errorf("rules of others refer to it: %w", err))
		default:
			errs = append(errs, err)
		}
	}

	return deleted, errors.Join(errs...)
}

// IP sets use our own transport, because the ipset methods of github.com/vishvananda/netlink v1.3.1
// panic on errors that are not an errno, and print unknown attributes.

// setRequest is a request about an IP set.
func setRequest(cmd uint8, verb, name string) *rawnl.Batch {
	b := &rawnl.Batch{}
	b.Message(rawnl.SubsysIPSet, cmd, 0, unix.NFPROTO_IPV4, 0,
		rawnl.Object{Verb: verb, Kind: "IP set", Name: name})
	b.U8(nl.IPSET_ATTR_PROTOCOL, nl.IPSET_PROTOCOL)
	b.Text(nl.IPSET_ATTR_SETNAME, name)
	return b
}

// readSets reads the IP sets. A kernel without IP sets answers that the request is unknown.
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

// readEntries adds the entries in one message of a set's dump.
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
