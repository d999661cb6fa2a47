package main

import (
	"context"
	"errors"
	"time"

	wire "github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// kernelShare measures the least that the kernel takes for a change, with messages that are made
// beforehand: a transaction that changes nothing, and one that replaces an element of a map.
func (b *benchmark) kernelShare(ctx context.Context) {
	if b.err != nil {
		return
	}
	conn, err := rawnl.Dial(nil)
	if err != nil {
		b.err = err
		return
	}
	const table = "kernlb-bench"
	commit := func(write func(e *wire.Encoder)) (took time.Duration, err error) {
		var batch rawnl.Batch
		write(wire.NewEncoder(&batch, wire.IPv4, table))
		start := time.Now()
		err = conn.Commit(ctx, &batch, 0)
		return time.Since(start), err
	}
	fields := append(wire.IPv4.FrontendFields(false), wire.FieldSlot)
	m := &wire.Set{Name: "endpoints", Key: fields, Size: 1 << 17, Flags: wire.SetMap, Typeof: true,
		Data: []wire.Field{wire.IPv4.Addr, wire.FieldPort}}
	elem := func(i int) *wire.ElemList {
		l := &wire.ElemList{}
		l.Add(wire.Elem{Key: make([]byte, 16),
			Data: []byte{byte(i >> 8), byte(i), 0, 0, 0, 80, 0, 0}})
		return l
	}
	_, err = commit(func(e *wire.Encoder) {
		e.AddTable()
		e.AddSet(m)
		e.AddElements(m, elem(0))
	})
	var nothing, element []time.Duration
	for i := 0; i < benchRuns && err == nil; i++ {
		var empty, one time.Duration
		empty, err = commit((*wire.Encoder).EnsureTable)
		if err == nil {
			one, err = commit(func(e *wire.Encoder) {
				e.DeleteElements(m, elem(i))
				e.AddElements(m, elem(i+1))
			})
		}
		nothing, element = append(nothing, empty), append(element, one)
	}
	b.report.EmptyTransaction, b.report.BareElement = newTiming(nothing, 1), newTiming(element, 2)
	_, gone := commit((*wire.Encoder).DeleteTable)
	b.err = errors.Join(err, gone, conn.Close())
}
