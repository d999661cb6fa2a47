package ipvs

import (
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/internal/comment"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// record is what the companion table holds about a frontend: all of its elements follow from it.
type record struct {
	fe   *servicemodel.Frontend
	mark uint32 // of the virtual server for pods and the host, if they have endpoints of their own
	nat  bool   // its packets are translated, so that they can be masqueraded
}

func (r *record) equal(o *record) bool {
	return r == o || r != nil && o != nil && r.mark == o.mark && r.nat == o.nat && r.fe.Equal(o.fe)
}

// The words that the companion adds to the comment of a frontend.
const (
	wordMark   = "mark="  // the number of the mark, without splitMarks
	wordRouted = "routed" // packets are forwarded unchanged
)

// comment returns the comment of the frontend in the registry.
func (r *record) comment() string {
	var more []string
	if r.mark != 0 {
		more = append(more, wordMark+strconv.FormatUint(uint64(r.mark&^splitMarks), 10))
	}
	if !r.nat {
		more = append(more, wordRouted)
	}
	return comment.Of(r.fe, more...)
}

// parseRecord is the inverse of comment. The sources are in sets of their own.
func parseRecord(s string, k servicemodel.FrontendKey) (*record, error) {
	r := &record{nat: true}
	fe, err := comment.Parse(s, k, func(word string) bool {
		number, mark := strings.CutPrefix(word, wordMark)
		switch {
		case mark:
			n, err := strconv.ParseUint(number, 10, 30)
			r.mark = splitMarks | uint32(n)
			return err == nil
		case word == wordRouted:
			r.nat = false
		default:
			return false
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	r.fe = fe
	return r, nil
}

// elements gives all elements of a record, each with the name of its set.
func (r *record) elements(to func(set string, e nft.Elem)) {
	if r == nil {
		return
	}
	f := r.fe
	kind := kindOf(f.Key)
	key := nft.AppendFrontend(nil, f.Key)
	member := func(rest string) { to(kind+rest, nft.Elem{Key: key}) }
	to(kind+"s", nft.Elem{Key: key, UserData: nft.AppendComment(nil, r.comment())})
	switch f.Internal {
	case servicemodel.Reject:
		member(setReject)
	case servicemodel.Drop:
		member(setDrop)
	}
	if f.External != f.Internal {
		member(setSplit)
		switch f.External {
		case servicemodel.Reject:
			member(setExtReject)
		case servicemodel.Drop:
			member(setExtDrop)
		}
	}
	if r.mark != 0 {
		to(kind+setMarks, nft.Elem{Key: key, Data: nft.Native32(r.mark)})
	}
	if r.nat {
		switch f.Masquerade {
		case servicemodel.FromAnywhere:
			member(setMasqAll)
		case servicemodel.FromHost | servicemodel.FromOutside:
			member(setMasqNotPod)
		case servicemodel.FromHost:
			member(setMasqHost)
		}
	}
	if !r.nat && kind == kindService {
		to(setRouted, nft.Elem{Key: key})
	}
	if f.Sources != nil {
		to(setRestricted, nft.Elem{Key: key})
		for _, p := range f.Sources {
			to(setSources,
				nft.Elem{Key: nft.AppendAddr(key[:len(key):len(key)], p.Masked().Addr()),
					KeyEnd: nft.AppendAddr(key[:len(key):len(key)], nft.LastAddr(p))})
		}
	}
}
