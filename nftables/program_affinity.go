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
func (b *builder) byClient(text string, load nftwire.Expr, code int32, chain string) part {
	var elems []string
	jumps := make([]nftwire.VerdictTo, affinityMaps)
	for i := range jumps {
		jumps[i] = nftwire.VerdictTo{Code: code, Chain: fmt.Sprint(chain, i)}
		elems = append(elems, fmt.Sprintf("%d : %s", i, b.verdict(code, jumps[i].Chain).text))
	}
	a := b.anonymous()
	a.jumps = jumps
	return part{
		text:  fmt.Sprintf("jhash %s mod %d seed 0x%x vmap { %s }", text, affinityMaps, affinitySeed, strings.Join(elems, ", ")),
		exprs: []nftwire.Expr{load, nftwire.JHash(b.f.addrLen, affinityMaps, affinitySeed), nftwire.LookupVerdict(a.id)},
		anon:  []anonymous{a},
	}
}

// remembered makes the chains that send clients who came before to the endpoint they had.
func (b *builder) remembered() {
	for i := range affinityMaps {
		text, load, l := b.loadKey(kindService)
		load = append(load, nftwire.Payload(nftwire.BaseNetwork, b.f.saddr, b.f.addrLen, nftwire.Word(l)))
		b.chain(chain{name: fmt.Sprint(chainRemembered, i)}, join(b.dnatMap(text+" . "+b.f.name+" saddr", load, affinityMap(i))))
	}
}

// learn makes the chains that remember which endpoint a client was given, one for each timeout and map.
func (b *builder) learn() {
	f := b.f
	original := fmt.Sprintf("ct original %s daddr . meta l4proto . ct original proto-dst", f.name)
	port := "meta l4proto . ct original proto-dst"
	client := func(to string) part {
		return b.byClient(fmt.Sprintf("ct original %s saddr", f.name), nftwire.CTOriginal(f.ctSrc, nftwire.Word(nftwire.Hashed)), nftwire.VerdictGoto, to)
	}
	var rules []rule
	for _, t := range b.shape.affinity {
		to := fmt.Sprint(chainLearn, "-", t, "-")
		service := affinityName(kindService, t)
		nodeport := affinityName(kindNodePort, t)
		rules = append(rules,
			join(b.protocols(), part{text: original + " @" + service, exprs: append(b.loadOriginal(), nftwire.Lookup(service, false))}, client(to)),
			join(b.protocols(), part{text: original + " != @" + kindService.registry, exprs: append(b.loadOriginal(), nftwire.Lookup(kindService.registry, true))},
				part{text: port + " @" + nodeport, exprs: []nftwire.Expr{nftwire.Meta(nftwire.MetaL4Proto, nftwire.Word(0)), nftwire.CTOriginal(nftwire.CTProtoDst, nftwire.Word(4)), nftwire.Lookup(nodeport, false)}}, client(to)))
		for i := range affinityMaps {
			b.chain(chain{name: fmt.Sprint(to, i)}, join(b.protocols(), b.update(original, affinityMap(i), time.Duration(t)*time.Second)))
		}
	}
	b.chain(chain{name: chainLearn}, rules...)
}

// loadOriginal loads the key of the frontend that a packet was sent to before DNAT.
func (b *builder) loadOriginal() []nftwire.Expr {
	n := b.f.addrLen
	return []nftwire.Expr{nftwire.CTOriginal(b.f.ctDst, nftwire.Word(0)), nftwire.Meta(nftwire.MetaL4Proto, nftwire.Word(n)), nftwire.CTOriginal(nftwire.CTProtoDst, nftwire.Word(n+4))}
}

// update remembers: what conntrack knows of the flow is the key, what the packet says after DNAT is the data. An entry that is there
// keeps its data and gets a new timeout. The map may be full, so nothing comes after it but a counter, by which Commit sees
// whether anybody was remembered while it worked.
func (b *builder) update(original, name string, timeout time.Duration) part {
	f, n := b.f, b.f.addrLen
	data := 2*n + 8 // right after the key
	return part{
		text: fmt.Sprintf("update @%s { %s . ct original %s saddr timeout %s : %s daddr . th dport } counter packets 0 bytes 0",
			name, original, f.name, nftDuration(timeout), f.name),
		exprs: append(b.loadOriginal(), nftwire.CTOriginal(f.ctSrc, nftwire.Word(n+8)),
			nftwire.Payload(nftwire.BaseNetwork, f.daddr, n, nftwire.Word(data)), nftwire.Payload(nftwire.BaseTransport, 2, 2, nftwire.Word(data+n)),
			nftwire.LearnClient(name, nftwire.Word(0), nftwire.Word(data), uint64(timeout.Milliseconds())), nftwire.Counter()),
	}
}

// anonymous is a set without a name that one rule uses: the protocols that have ports, or chains by number.
type anonymous struct {
	id    uint32
	jumps []nftwire.VerdictTo
}

func (b *builder) anonymous() anonymous {
	b.anon++
	return anonymous{id: uint32(b.f.nfproto)<<16 | uint32(b.anon)}
}

// protocols matches the protocols that have ports. Without it in front, nft 1.0.6 cannot load a concatenation with ct proto-dst from text,
// and of another set than an anonymous one it does not learn what it needs to.
func (b *builder) protocols() part {
	a := b.anonymous()
	return part{text: "ct protocol { tcp, udp, sctp }", exprs: []nftwire.Expr{nftwire.CT(nftwire.CTProtocol, nftwire.Word(0)), nftwire.LookupID(a.id)}, anon: []anonymous{a}}
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
