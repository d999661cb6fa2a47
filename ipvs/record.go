package ipvs

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

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

// comment is what the registry says: "default/web:http load-balancer cluster local m=6 a=60 k=1
// rs". Behind the verdicts are, if they are not zero: the origins that are masqueraded (m), the
// timeout of affinity in seconds (a), the number of the mark (k), r if packets are forwarded
// unchanged, and s if there are source ranges. With the longest name that there can be, 191 bytes,
// it is 249 bytes long; user data can hold 251.
func (r *record) comment() string {
	f := r.fe
	s := f.Service.String() + " " + f.Kind.String() + " " + f.Internal.String() + " " +
		f.External.String()
	if f.Masquerade != 0 {
		s += fmt.Sprintf(" m=%d", f.Masquerade)
	}
	if f.Affinity != 0 {
		s += fmt.Sprintf(" a=%d", int(f.Affinity.Seconds()))
	}
	if r.mark != 0 {
		s += fmt.Sprintf(" k=%d", r.mark&^splitMarks)
	}
	var letters string
	if !r.nat {
		letters += "r"
	}
	if f.Sources != nil {
		letters += "s"
	}
	if letters != "" {
		s += " " + letters
	}
	return s
}

// parseRecord is the inverse of comment.
func parseRecord(s string, k servicemodel.FrontendKey) (*record, error) {
	w := strings.Split(s, " ")
	if len(w) < 4 {
		return nil, fmt.Errorf("comment %q is not one of ours", s)
	}
	f := &servicemodel.Frontend{Key: k}
	r := &record{fe: f, nat: true}
	ns, name, ok := strings.Cut(w[0], "/")
	name, port, _ := strings.Cut(name, ":")
	f.Service = servicemodel.PortName{Name: servicemodel.Name{Namespace: ns, Name: name},
		Port: port, Protocol: k.Protocol}
	var kindOK, intOK, extOK bool
	f.Kind, kindOK = named(w[1], servicemodel.NodePort)
	f.Internal, intOK = named(w[2], servicemodel.BalanceLocal)
	f.External, extOK = named(w[3], servicemodel.BalanceLocal)
	if !ok || !kindOK || !intOK || !extOK {
		return nil, fmt.Errorf("comment %q has unknown words", s)
	}
	for _, word := range w[4:] {
		if err := r.parseWord(word); err != nil {
			return nil, fmt.Errorf("comment %q: %w", s, err)
		}
	}
	return r, nil
}

// parseWord reads one of the words behind the verdicts.
func (r *record) parseWord(word string) error {
	switch word {
	case "r", "s", "rs":
		r.nat = word[0] != 'r'
		if strings.HasSuffix(word, "s") {
			r.fe.Sources = []netip.Prefix{}
		}
		return nil
	}
	name, value, _ := strings.Cut(word, "=")
	n, err := strconv.ParseUint(value, 10, 30)
	switch name {
	case "m":
		r.fe.Masquerade = servicemodel.Origins(n)
	case "a":
		r.fe.Affinity = time.Duration(n) * time.Second
	case "k":
		r.mark = splitMarks | uint32(n)
	default:
		err = fmt.Errorf("unknown word %q", word)
	}
	return err
}

// named finds the value, from 0 to last, whose name is s.
func named[T interface {
	~uint8
	String() string
}](s string, last T) (T, bool) {
	for v := T(0); v <= last; v++ {
		if v.String() == s {
			return v, true
		}
	}
	return 0, false
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
