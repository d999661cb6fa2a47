package form

import (
	"encoding/binary"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// Blocks writes the elements that send packets to a range of t: the blocks of the range, except
// blocks of preceding ranges, and the address if this is the first range at the address.
func (w *Writer) Blocks(t *servicemodel.Table, fe *servicemodel.Frontend, to Sink) {
	k := fe.Key
	if k.EndPort == 0 {
		return
	}
	w.data = nft.AppendPortRange(w.data[:0], k)
	for b := range t.OwnBlocks(k) {
		w.key = nft.AppendBlock(w.key[:0], b.First, k)
		to(BlockMap(KindOf(k), b.Bits), nft.Elem{Key: w.key, Data: w.data})
	}

	if first := t.FirstRange(k.Addr); !k.NodePort() && first != nil && first.Key == k {
		w.key = nft.AppendAddr(w.key[:0], k.Addr)
		to(SetRangeAddresses, nft.Elem{Key: w.key})
	}
}

// RangePorts writes the elements of a range of t whose packets do not keep their ports.
func (w *Writer) RangePorts(t *servicemodel.Table, fe *servicemodel.Frontend, to Sink) {
	if fe.Key.EndPort == 0 {
		return
	}
	port, _ := RangePort(t.PoolsOf(fe))
	if port == 0 {
		return
	}
	prefix := KindOf(fe.Key).Prefix
	w.key = nft.AppendFrontend(w.key[:0], fe.Key)
	to(w.names.get(prefix, SetToPort, -1), nft.Elem{Key: w.key})
	if !fe.Shifted {
		w.data = binary.BigEndian.AppendUint16(w.data[:0], port)
		to(w.names.get(prefix, SetPorts, -1), nft.Elem{Key: w.key, Data: w.data})
		return
	}

	shifts := w.names.get(prefix, SetShifts, -1)
	for at := range fe.Key.EndPort - fe.Key.Port + 1 {
		w.data = binary.BigEndian.AppendUint16(w.data[:0], port+at)
		to(shifts, nft.Elem{Key: nft.AppendPort(w.key, fe.Key.Port+at), Data: w.data})
	}
}
