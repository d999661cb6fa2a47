package nftables

import (
	"encoding/binary"

	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/nftwire"
	"github.com/kernlb/kernlb/servicemodel"
)

// Flags of a set that only one rule uses.
const setAnonymous = 0x3 // NFT_SET_ANONYMOUS | NFT_SET_CONSTANT

// anonymous appends a set that the next rule uses.
func (e *encoder) anonymous(a anonymous) {
	if a.jumps != nil {
		e.verdictMap(a)
		return
	}
	protocols := []servicemodel.Protocol{servicemodel.TCP, servicemodel.UDP, servicemodel.SCTP}
	e.newAnonymous(a.id, nftwire.AnonymousSetName, setAnonymous, fieldProto, len(protocols))
	end := e.beginAnonymous(a.id, nftwire.AnonymousSetName)
	for _, p := range protocols {
		n := e.b.Nest(1) // NFTA_LIST_ELEM
		e.elemKey([]byte{byte(p)})
		e.b.End(n)
	}
	e.b.End(end)
}

// verdictMap appends the anonymous map from numbers to verdicts.
func (e *encoder) verdictMap(a anonymous) {
	e.newAnonymous(a.id, nftwire.AnonymousMapName, setAnonymous|setMap, fieldSlot, len(a.jumps))
	end := e.beginAnonymous(a.id, nftwire.AnonymousMapName)
	for i, to := range a.jumps {
		n := e.b.Nest(1)
		e.elemKey(binary.NativeEndian.AppendUint32(nil, uint32(i)))
		d := e.b.Nest(2) // NFTA_SET_ELEM_DATA
		nftwire.DataVerdict(e.b, to)
		e.b.End(d)
		e.b.End(n)
	}
	e.b.End(end)
}

func (e *encoder) newAnonymous(id uint32, name string, flags uint32, key field, size int) {
	e.message(msgNewSet, nfnl.FlagCreate, "add", "set", name)
	e.b.Text(1, e.table)
	e.b.Text(2, name)
	e.b.U32(3, flags)
	e.b.U32(4, key.typ)
	e.b.U32(5, uint32(key.len))
	if flags&setMap != 0 {
		e.b.U32(6, dataTypeVerdict)
		e.b.U32(7, 16) // NFTA_SET_DATA_LEN: sizeof(struct nft_verdict)
	}
	e.b.U32(10, id)
	d := e.b.Nest(9)
	e.b.U32(1, uint32(size))
	e.b.End(d)
	if key == fieldSlot {
		e.b.Attr(13, udU32(nil, 0, 1)) // the key is in the byte order of the machine
	}
}

const dataTypeVerdict = 0xffffff00 // NFT_DATA_VERDICT

// beginAnonymous begins the list of elements.
func (e *encoder) beginAnonymous(id uint32, name string) nfnl.Mark {
	e.message(msgNewSetElem, nfnl.FlagCreate, "add", "set", name)
	e.b.Text(1, e.table)
	e.b.Text(2, name)
	e.b.U32(4, id) // NFTA_SET_ELEM_LIST_SET_ID
	return e.b.Nest(3)
}

func (e *encoder) elemKey(key []byte) {
	k := e.b.Nest(1) // NFTA_SET_ELEM_KEY
	e.b.Attr(1, key) // NFTA_DATA_VALUE
	e.b.End(k)
}
