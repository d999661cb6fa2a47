// Package witness finds out which program changes something in nf_tables. The kernel tells those
// who listen, and nobody later: the generation that can be asked for names the one who asks. Who
// listens makes every transaction slower meanwhile, since the kernel then has to tell all of it.
package witness

import (
	"context"
	"errors"
	"time"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/threadns"
)

// group is the multicast group of what transactions change (NFNLGRP_NFTABLES,
// include/uapi/linux/netfilter/nfnetlink.h).
const group = 7

// queueSize has room for what a ruleset of some thousand services makes when it is flushed.
const queueSize = 4 << 20

// Attributes of messages (include/uapi/linux/netfilter/nf_tables.h): what begins with the name of
// its table are tables, chains, rules, sets, elements and objects.
const (
	attrTable     uint16 = 1 // NFTA_TABLE_NAME and its like
	attrRuleChain uint16 = 2 // NFTA_RULE_CHAIN
	attrChainName uint16 = 3 // NFTA_CHAIN_NAME
	msgNewChain   uint8  = 3 // NFT_MSG_NEWCHAIN
	msgDelChain   uint8  = 5 // NFT_MSG_DELCHAIN
	msgNewRule    uint8  = 6 // NFT_MSG_NEWRULE
	msgDelRule    uint8  = 8 // NFT_MSG_DELRULE
	deletes       uint8  = 2 // of types divided by three: NFT_MSG_DELTABLE and its like
)

// Change is something that a transaction has changed.
type Change struct {
	Deleted bool
	Table   string
	Chain   string // of chains and rules
}

// Wait waits for a transaction that has changed something ours, and that another socket than that
// of conn has made. It returns who that was, or the error of the context.
func Wait(ctx context.Context, ns *threadns.NS, conn *rawnl.Conn, ours func(Change) bool) (
	rawnl.GenInfo, error) {
	own, err := conn.GenID(ctx)
	if err != nil {
		return rawnl.GenInfo{}, err
	}
	var l *rawnl.Listener
	err = ns.Do(func() (err error) {
		l, err = rawnl.Listen(rawnl.ListenConfig{Groups: []uint32{group}, Buffer: queueSize})
		return err
	})
	if err != nil {
		return rawnl.GenInfo{}, err
	}
	defer l.Close() //nolint:errcheck // nothing is owed
	defer context.AfterFunc(ctx, func() {
		l.SetDeadline(time.Unix(1, 0)) //nolint:errcheck // fails only if it is closed
	})()
	w := watch{own: own.Port, ours: ours}
	buf := make([]byte, 1<<16)
	for {
		n, err := l.Wait(buf)
		switch {
		case ctx.Err() != nil:
			return rawnl.GenInfo{}, context.Cause(ctx)
		case errors.Is(err, rawnl.ErrOverflow):
			w.changed = false // whose the next changes are is not known
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

// watch looks at what the kernel tells.
type watch struct {
	own     uint32 // a port
	ours    func(Change) bool
	changed bool // by the transaction that is being told, something of ours
	found   rawnl.GenInfo
}

// message looks at one message. The generation comes after all changes of a transaction.
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

// changeOf reads what a message is about.
func changeOf(m rawnl.Message) (c Change, err error) {
	c.Deleted = m.Type%3 == deletes
	it := rawnl.Attrs(m.Attrs)
	for it.Next() {
		switch t := it.Type(); {
		case t == attrTable:
			c.Table = it.Text()
		case t == attrChainName && (m.Type == msgNewChain || m.Type == msgDelChain),
			t == attrRuleChain && (m.Type == msgNewRule || m.Type == msgDelRule):
			c.Chain = it.Text()
		}
	}
	return c, it.Err()
}
