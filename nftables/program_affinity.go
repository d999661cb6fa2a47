package nftables

import (
	"fmt"
	"strings"
	"time"

	"github.com/kernlb/kernlb/internal/nftwire"
)

// Names of the chains of session affinity; the number of a map follows.
const (
	chainLearn      = "learn"
	chainRemembered = "remembered-"
)

// byClient goes on in one of the chains of the affinity maps: the one for the client's address.
func (b *builder) byClient(text string, load nftwire.Expr, code int32, chain string) nftwire.Rule {
	var elems []string
	jumps := make([]nftwire.VerdictTo, affinityMaps)
	for i := range jumps {
		jumps[i] = nftwire.VerdictTo{Code: code, Chain: fmt.Sprint(chain, i)}
		elems = append(elems, fmt.Sprintf("%d : %s", i, b.verdict(code, jumps[i].Chain).Text))
	}
	a := b.anonymous()
	a.Jumps = jumps
	return nftwire.Rule{
		Text: fmt.Sprintf("jhash %s mod %d seed 0x%x vmap { %s }", text, affinityMaps,
			affinitySeed, strings.Join(elems, ", ")),
		Exprs: []nftwire.Expr{load, nftwire.JHash(b.f.AddrLen, affinityMaps, affinitySeed),
			nftwire.LookupVerdict(a.ID)},
		Sets: []nftwire.AnonymousSet{a},
	}
}

// remembered makes the chains that send clients who came before to the endpoint they had.
func (b *builder) remembered() {
	for i := range affinityMaps {
		text, load, l := b.loadKey(kindService)
		load = append(load, nftwire.Payload(nftwire.BaseNetwork, b.f.Saddr, b.f.AddrLen,
			nftwire.Word(l)))
		b.prog.Add(fmt.Sprint(chainRemembered, i),
			nftwire.Join(b.dnatMap(text+" . "+b.f.Name+" saddr", load, affinityMap(i))))
	}
}

// learn makes the chains that remember which endpoint a client was given, one for each timeout and
// map.
func (b *builder) learn() {
	f := b.f
	original := fmt.Sprintf("ct original %s daddr . meta l4proto . ct original proto-dst", f.Name)
	port := "meta l4proto . ct original proto-dst"
	client := func(to string) nftwire.Rule {
		return b.byClient(fmt.Sprintf("ct original %s saddr", f.Name),
			nftwire.CTOriginal(f.CTSrc, nftwire.Word(nftwire.Hashed)), nftwire.VerdictGoto, to)
	}
	var rules []nftwire.Rule
	for _, t := range b.shape.affinity {
		to := fmt.Sprint(chainLearn, "-", t, "-")
		service := affinityName(kindService, t)
		nodeport := affinityName(kindNodePort, t)
		rules = append(rules,
			nftwire.Join(b.protocols(), nftwire.Rule{Text: original + " @" + service,
				Exprs: append(b.loadOriginal(), nftwire.Lookup(service, false))}, client(to)),
			nftwire.Join(b.protocols(),
				nftwire.Rule{Text: original + " != @" + kindService.registry,
					Exprs: append(b.loadOriginal(), nftwire.Lookup(kindService.registry, true))},
				nftwire.Rule{Text: port + " @" + nodeport,
					Exprs: []nftwire.Expr{nftwire.Meta(nftwire.MetaL4Proto, nftwire.Word(0)),
						nftwire.CTOriginal(nftwire.CTProtoDst, nftwire.Word(4)),
						nftwire.Lookup(nodeport, false)}}, client(to)))
		for i := range affinityMaps {
			b.prog.Add(fmt.Sprint(to, i),
				nftwire.Join(b.protocols(), b.update(original, affinityMap(i),
					time.Duration(t)*time.Second)))
		}
	}
	b.prog.Add(chainLearn, rules...)
}

// loadOriginal loads the key of the frontend that a packet was sent to before DNAT.
func (b *builder) loadOriginal() []nftwire.Expr {
	n := b.f.AddrLen
	return []nftwire.Expr{nftwire.CTOriginal(b.f.CTDst, nftwire.Word(0)),
		nftwire.Meta(nftwire.MetaL4Proto, nftwire.Word(n)), nftwire.CTOriginal(nftwire.CTProtoDst,
			nftwire.Word(n+4))}
}

// update remembers: what conntrack knows of the flow is the key, what the packet says after DNAT is
// the data. An entry that is there keeps its data and gets a new timeout. The map may be full, so
// nothing comes after it but a counter, by which Commit sees whether anybody was remembered while
// it worked.
func (b *builder) update(original, name string, timeout time.Duration) nftwire.Rule {
	f, n := b.f, b.f.AddrLen
	data := 2*n + 8 // right after the key
	return nftwire.Rule{
		Text: fmt.Sprintf(
			"update @%s { %s . ct original %s saddr timeout %s : %s daddr . th dport } counter "+
				"packets 0 bytes 0",
			name, original, f.Name, nftDuration(timeout), f.Name),
		Exprs: append(b.loadOriginal(), nftwire.CTOriginal(f.CTSrc, nftwire.Word(n+8)),
			nftwire.Payload(nftwire.BaseNetwork, f.Daddr, n, nftwire.Word(data)),
			nftwire.Payload(nftwire.BaseTransport, 2, 2, nftwire.Word(data+n)),
			nftwire.LearnClient(name, nftwire.Word(0), nftwire.Word(data),
				uint64(timeout.Milliseconds())), nftwire.Counter()),
	}
}

// anonymous returns an anonymous set with a number of its own.
func (b *builder) anonymous() nftwire.AnonymousSet {
	b.anon++
	return nftwire.AnonymousSet{ID: uint32(b.f.NFProto)<<16 | uint32(b.anon)}
}

// protocols matches the protocols that have ports. Without it in front, nft 1.0.6 cannot load a
// concatenation with ct proto-dst from text, and of another set than an anonymous one it does not
// learn what it needs to.
func (b *builder) protocols() nftwire.Rule {
	a := b.anonymous()
	return nftwire.Rule{Text: "ct protocol { tcp, udp, sctp }",
		Exprs: []nftwire.Expr{nftwire.CT(nftwire.CTProtocol, nftwire.Word(0)),
			nftwire.LookupID(a.ID)}, Sets: []nftwire.AnonymousSet{a}}
}

// nftDuration writes a duration of whole seconds as nft does: "3h", "1m30s".
func nftDuration(d time.Duration) string {
	var s string
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}} {
		if n := d / u.unit; n > 0 {
			s += fmt.Sprintf("%d%s", n, u.name)
			d -= n * u.unit
		}
	}
	return s
}
