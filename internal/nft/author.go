package nft

// The kernel reports the program that changes nf_tables only to sockets that listen at that moment.
// A later request does not help: a request for the generation returns the requesting program. While
// a socket listens, every transaction is slower, because the kernel must report all its changes.

import (
	"context"
	"errors"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/threadns"
	"github.com/kernlb/kernlb/internal/wait"
)

// group is the multicast group for the changes of transactions (NFNLGRP_NFTABLES,
// include/uapi/linux/netfilter/nfnetlink.h).
const group = 7

// queueSize has room for the messages of a flushed ruleset with a few thousand services.
const queueSize = 4 << 20

// Changed is one change of a transaction.
type Changed struct {
	Deleted bool
	Table   string
	Chain   string // of chains and rules
}

// Author waits until a socket other than conn's commits a transaction with a change for which ours
// returns true. It returns the committing program, or the error of the context.
func Author(ctx context.Context, ns *threadns.NS, conn *rawnl.Conn, ours func(Changed) bool) (
	rawnl.GenInfo, error) {
	own, err := conn.GenID(ctx)
	if err != nil {
		return rawnl.GenInfo{}, err
	}
	var l *rawnl.Listener
	err = ns.Do(func() (err error) {
		l, err = rawnl.Listen([]uint32{group}, queueSize)
		return err
	})
	if err != nil {
		return rawnl.GenInfo{}, err
	}
	defer l.Close() //nolint:errcheck // the result is already known
	defer context.AfterFunc(ctx, func() { l.Close() })()
	w := watch{own: own.Port, ours: ours}
	buf := make([]byte, 1<<16)
	for {
		n, err := l.Receive(buf)
		if ended := wait.Ended(ctx); ended != nil {
			return rawnl.GenInfo{}, ended
		}
		switch {
		case errors.Is(err, rawnl.ErrOverflow):
			w.changed = false // the next changes may belong to another transaction
			continue
		case err != nil:
			return rawnl.GenInfo{}, err
		}

		if err := rawnl.Messages(buf[:n], w.message); err != nil {
			return rawnl.GenInfo{}, err
		}
		if w.found.ID != 0 {
			return w.found, nil
		}
	}
}

// watch follows the messages of one listener.
type watch struct {
	own     uint32 // the port of our socket
	ours    func(Changed) bool
	changed bool // the current transaction has a change that ours accepts
	found   rawnl.GenInfo
}

// message handles one message. The generation comes after all changes of a transaction.
func (w *watch) message(m rawnl.Message) error {
	if m.Subsys != rawnl.SubsysNFTables {
		return nil
	}
	g, ended, err := m.Generation()
	if err != nil {
		return err
	}
	if !ended {
		c, err := changeOf(m)
		w.changed = w.changed || m.Port != w.own && w.ours(c)
		return err
	}

	if w.changed && w.found.ID == 0 {
		w.found = g
	}
	w.changed = false
	return nil
}

// changeOf decodes the change in a message.
func changeOf(m rawnl.Message) (c Changed, err error) {
	c.Deleted = m.Type%3 == MsgDelTable // the messages come in threes: new, get and delete
	it := rawnl.Attrs(m.Attrs)
	for it.Next() {
		switch t := it.Type(); {
		case t == AttrTableName: // for each kind of object
			c.Table = it.Text()
		case t == AttrChainName && (m.Type == MsgNewChain || m.Type == MsgDelChain),
			t == AttrRuleChain && (m.Type == MsgNewRule || m.Type == MsgDelRule):
			c.Chain = it.Text()
		}
	}

	return c, it.Err()
}
