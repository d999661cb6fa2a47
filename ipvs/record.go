package ipvs

import (
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// record is the content of the companion table about a frontend. All of the frontend's elements
// follow from it.
type record struct {
	fe   *servicemodel.Frontend
	mark uint32 // of the virtual server for pods and the host, if they have endpoints of their own
	nat  bool   // its packets are translated, and so can be masqueraded
}

func (r *record) equal(o *record) bool {
	return r == o || r != nil && o != nil && r.mark == o.mark && r.nat == o.nat && r.fe.Equal(o.fe)
}

// The words that the companion adds to the comment of a frontend.
const (
	wordMark   = "mark="  // the number of the mark, without allMarks
	wordRouted = "routed" // packets are forwarded unchanged
)

// comment returns the comment of the frontend in the registry.
func (r *record) comment() string {
	var more []string
	if r.mark != 0 {
		more = append(more, wordMark+strconv.FormatUint(uint64(r.mark&^allMarks), 10))
	}
	if !r.nat {
		more = append(more, wordRouted)
	}
	return rendering.Comment(r.fe, more...)
}

// parseRecord is the inverse of comment. The sources are in sets of their own.
func parseRecord(s string, k servicemodel.FrontendKey) (*record, error) {
	r := &record{nat: true}
	fe, err := rendering.ParseComment(s, k, func(word string) bool {
		number, mark := strings.CutPrefix(word, wordMark)
		switch {
		case mark:
			n, err := strconv.ParseUint(number, 10, 30)
			r.mark = allMarks | uint32(n)
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

// elements passes all elements of a record on, each with the name of its set.
func (r *record) elements(to func(set string, e nft.Elem)) {
	if r == nil {
		return
	}
	kind, key := kindOf(r.fe.Key), nft.AppendFrontend(nil, r.fe.Key)
	to(kind+"s", nft.Elem{Key: key, UserData: nft.AppendComment(nil, r.comment())})
	in := func(set string) {
		if set != "" {
			to(kind+set, nft.Elem{Key: key})
		}
	}
	in(refusing[r.fe.Internal])
	if r.fe.External != r.fe.Internal {
		in(setSplit)
		in(refusingOutside[r.fe.External])
	}
	if r.mark != 0 {
		to(kind+setMarks, nft.Elem{Key: key, Data: nft.Native32(r.mark)})
	}
	if r.nat {
		in(masqueradeSets[r.fe.Masquerade])
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

// refusing and refusingOutside are the sets of frontends that reject or drop packets: of pods and
// the host, and of clients outside if these meet another verdict.
var (
	refusing = map[servicemodel.Verdict]string{
		servicemodel.Reject: setReject, servicemodel.Drop: setDrop}
	refusingOutside = map[servicemodel.Verdict]string{
		servicemodel.Reject: setExtReject, servicemodel.Drop: setExtDrop}
)
