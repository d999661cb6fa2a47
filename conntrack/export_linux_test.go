package conntrack

import (
	"context"
	"errors"
	"net/netip"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

const (
	TombstonePort = tombstonePort
	TombstoneTime = tombstoneTime
)

// Hurt injects faults into all further requests of the table.
func (t *Table) Hurt(f *rawnltest.Faults) error {
	t.wrap = func(s rawnl.Socket) rawnl.Socket { return f.Wrap(s) }
	old := t.conn
	conn, err := t.dial()
	if err != nil {
		return err
	}
	t.conn = conn
	return errors.Join(err, old.Close())
}

// SendSynAck sends a segment that makes a TCP send an acknowledgement.
func (t *Table) SendSynAck(src, dst netip.AddrPort) error {
	c := newCutting(t, nil)
	defer c.close()
	return t.ns.Do(func() error { return c.send(synAck(src, dst), dst.Addr()) })
}

func (t *Table) Cut(ctx context.Context, flows []Flow) (r CleanResult, err error) {
	c := newCutting(t, &r)
	defer c.close()
	err = c.cut(ctx, flows)
	return r, errors.Join(err, c.unreached)
}

// CutAgain is the second or later attempt of a Cut.
type CutAgain struct {
	Were, Are, Survivors []Flow
	Result               CleanResult
}

func (t *Table) CutAgain(ctx context.Context, flows []Flow) (again CutAgain, err error) {
	targets, err := t.remade(ctx, flows)
	if err != nil {
		return again, err
	}
	for _, target := range targets {
		again.Were, again.Are = append(again.Were, target.flow), append(again.Are, target.now)
	}
	c := newCutting(t, &again.Result)
	defer c.close()
	err = t.ns.Do(func() (err error) {
		again.Survivors, err = c.replace(ctx, targets)
		return err
	})
	return again, err
}
