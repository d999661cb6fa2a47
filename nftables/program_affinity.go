package nftables

import (
	"fmt"
	"strings"
	"time"

	"github.com/kernlb/kernlb/internal/nft"
)

// Names of the chains of session affinity; the number of a map follows.
const (
	chainLearn      = "learn"
	chainRemembered = "remembered-"
)

// byClient goes on in one of the chains of the affinity maps: the one for the client's address.
func (b *builder) byClient(text string, load nft.Expr, code int32, chain string) nft.Rule {
	var elems []string
	jumps := make([]nft.VerdictTo, affinityMaps)
	for i := range jumps {
		jumps[i] = nft.VerdictTo{Code: code, Chain: fmt.Sprint(chain, i)}
		elems = append(elems, fmt.Sprintf("%d : %s", i, b.verdict(code, jumps[i].Chain).Text))
	}
	a := b.anonymous()
	a.Jumps = jumps
	return nft.Rule{
		Text: fmt.Sprintf("jhash %s mod %d seed 0x%x vmap { %s }", text, affinityMaps,
			affinitySeed, strings.Join(elems, ", ")),
		Exprs: []nft.Expr{load, nft.JHash(b.f.AddrLen, affinityMaps, affinitySeed),
			nft.LookupVerdict(a.ID)},
		Sets: []nft.AnonymousSet{a},
	}
}

// remembered makes the chains that send clients who came before to the endpoint they had.
func (b *builder) remembered() {
	for i := range affinityMaps {
		text, load, l := b.loadKey(kindService)
		load = append(load, nft.Payload(nft.BaseNetwork, b.f.Saddr, b.f.AddrLen,
			nft.Word(l)))
		b.prog.Add(fmt.Sprint(chainRemembered, i),
			nft.Join(b.dnatMap(text+" . "+b.f.Name+" saddr", load, affinityMap(i))))
	}
}

// learn makes the chains that remember which endpoint a client was given, one for each timeout and
// map.
func (b *builder) learn() {
	f := b.f
	original := fmt.Sprintf("ct original %s daddr . meta l4proto . ct original proto-dst", f.Name)
	port := "meta l4proto . ct original proto-dst"
	client := func(to string) nft.Rule {
		return b.byClient(fmt.Sprintf("ct original %s saddr", f.Name),
			nft.CTOriginal(f.CTSrc, nft.Word(nft.Hashed)), nft.VerdictGoto, to)
	}
	var rules []nft.Rule
	for _, t := range b.shape.affinity {
		to := fmt.Sprint(chainLearn, "-", t, "-")
		service := affinityName(kindService, t)
		nodeport := affinityName(kindNodePort, t)
		rules = append(rules,
			nft.Join(b.protocols(), nft.Rule{Text: original + " @" + service,
				Exprs: append(b.loadOriginal(), nft.Lookup(service, false))}, client(to)),
			nft.Join(b.protocols(),
				nft.Rule{Text: original + " != @" + kindService.registry,
					Exprs: append(b.loadOriginal(), nft.Lookup(kindService.registry, true))},
				nft.Rule{Text: port + " @" + nodeport,
					Exprs: []nft.Expr{nft.Meta(nft.MetaL4Proto, nft.Word(0)),
						nft.CTOriginal(nft.CTProtoDst, nft.Word(4)),
						nft.Lookup(nodeport, false)}}, client(to)))
		for i := range affinityMaps {
			b.prog.Add(fmt.Sprint(to, i),
				nft.Join(b.protocols(), b.update(original, affinityMap(i),
					time.Duration(t)*time.Second)))
		}
	}
	b.prog.Add(chainLearn, rules...)
}

// loadOriginal loads the key of the frontend that a packet was sent to before DNAT.
func (b *builder) loadOriginal() []nft.Expr {
	n := b.f.AddrLen
	return []nft.Expr{nft.CTOriginal(b.f.CTDst, nft.Word(0)),
		nft.Meta(nft.MetaL4Proto, nft.Word(n)), nft.CTOriginal(nft.CTProtoDst,
			nft.Word(n+4))}
}

// update remembers: what conntrack knows of the flow is the key, what the packet says after DNAT is
// the data. An entry that is there keeps its data and gets a new timeout. The map may be full, so
// nothing comes after it but a counter, by which Commit sees whether anybody was remembered while
// it worked.
func (b *builder) update(original, name string, timeout time.Duration) nft.Rule {
	f, n := b.f, b.f.AddrLen
	data := 2*n + 8 // right after the key
	return nft.Rule{
		Text: fmt.Sprintf(
			"update @%s { %s . ct original %s saddr timeout %s : %s daddr . th dport } counter "+
				"packets 0 bytes 0",
			name, original, f.Name, nftDuration(timeout), f.Name),
		Exprs: append(b.loadOriginal(), nft.CTOriginal(f.CTSrc, nft.Word(n+8)),
			nft.Payload(nft.BaseNetwork, f.Daddr, n, nft.Word(data)),
			nft.Payload(nft.BaseTransport, 2, 2, nft.Word(data+n)),
			nft.LearnClient(name, nft.Word(0), nft.Word(data),
				uint64(timeout.Milliseconds())), nft.Counter()),
	}
}

// anonymous returns an anonymous set with a number of its own.
func (b *builder) anonymous() nft.AnonymousSet {
	b.anon++
	return nft.AnonymousSet{ID: uint32(b.f.NFProto)<<16 | uint32(b.anon)}
}

// protocols matches the protocols that have ports. Without it in front, nft 1.0.6 cannot load a
// concatenation with ct proto-dst from text, and of another set than an anonymous one it does not
// learn what it needs to.
func (b *builder) protocols() nft.Rule {
	a := b.anonymous()
	return nft.Rule{Text: "ct protocol { tcp, udp, sctp }",
		Exprs: []nft.Expr{nft.CT(nft.CTProtocol, nft.Word(0)),
			nft.LookupID(a.ID)}, Sets: []nft.AnonymousSet{a}}
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
