package ipvs

import (
	"slices"
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
	kind, key := kindOf(r.fe.Key), nft.AppendFrontend(nil, r.fe.Key)
	to(kind+"s", nft.Elem{Key: key, UserData: nft.AppendComment(nil, r.comment())})
	for _, rest := range r.verdictSets() {
		to(kind+rest, nft.Elem{Key: key})
	}
	if r.mark != 0 {
		to(kind+setMarks, nft.Elem{Key: key, Data: nft.Native32(r.mark)})
	}
	if set := masqueradeSets[r.fe.Masquerade]; r.nat && set != "" {
		to(kind+set, nft.Elem{Key: key})
	}
	if !r.nat && kind == kindService {
		to(setRouted, nft.Elem{Key: key})
	}
	if r.fe.Sources != nil {
		to(setRestricted, nft.Elem{Key: key})
	}
	for _, p := range r.fe.Sources {
		to(setSources, nft.Elem{Key: nft.AppendAddr(slices.Clone(key), p.Masked().Addr()),
			KeyEnd: nft.AppendAddr(slices.Clone(key), nft.LastAddr(p))})
	}
}

// masqueradeSets are the sets of frontends whose connections are masqueraded, by their origins.
var masqueradeSets = map[servicemodel.Origins]string{
	servicemodel.FromAnywhere:                        setMasqAll,
	servicemodel.FromHost | servicemodel.FromOutside: setMasqNotPod,
	servicemodel.FromHost:                            setMasqHost,
}

// verdictSets returns the sets that a frontend is in for its verdicts, where they are to reject or
// to drop, or differ for clients outside.
func (r *record) verdictSets() (l []string) {
	f := r.fe
	switch f.Internal {
	case servicemodel.Reject:
		l = append(l, setReject)
	case servicemodel.Drop:
		l = append(l, setDrop)
	}
	if f.External == f.Internal {
		return l
	}
	l = append(l, setSplit)
	switch f.External {
	case servicemodel.Reject:
		l = append(l, setExtReject)
	case servicemodel.Drop:
		l = append(l, setExtDrop)
	}
	return l
}
