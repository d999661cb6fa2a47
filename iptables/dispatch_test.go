package iptables

import (
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// keyMaker draws keys of one kind: spread, crowded, many ports at one address.
type keyMaker struct {
	name string
	id   treeKind
	f    *nft.Family
	key  func(*rand.Rand) sm.FrontendKey
}

func keyMakers() []keyMaker {
	protocol := func(r *rand.Rand) sm.Protocol {
		return []sm.Protocol{sm.TCP, sm.TCP, sm.UDP, sm.SCTP}[r.IntN(4)]
	}
	v4 := func(mask uint32) func(*rand.Rand) netip.Addr {
		return func(r *rand.Rand) netip.Addr {
			n := 10<<24 | r.Uint32()&mask
			return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
		}
	}

	v6 := func(r *rand.Rand) netip.Addr {
		a := netip.MustParseAddr("fd00:10:96::").As16()
		a[15], a[14], a[3] = byte(r.IntN(256)), byte(r.IntN(2)), byte(r.IntN(2))
		return netip.AddrFrom16(a)
	}

	few := func(ports ...uint16) func(*rand.Rand) uint16 {
		return func(r *rand.Rand) uint16 { return ports[r.IntN(len(ports))] }
	}
	nodePort := func(r *rand.Rand) uint16 { return uint16(30000 + r.IntN(2768)) }
	all := func(r *rand.Rand) uint16 { return uint16(1 + r.IntN(65535)) }
	make := func(addr func(*rand.Rand) netip.Addr,
		port func(*rand.Rand) uint16) func(*rand.Rand) sm.FrontendKey {
		return func(r *rand.Rand) sm.FrontendKey {
			return sm.FrontendKey{Addr: addr(r), Protocol: protocol(r), Port: port(r)}
		}
	}

	return []keyMaker{
		{"addresses spread over a range", natServices, nft.IPv4, make(v4(0xfffff), few(80, 443))},
		{"a few addresses with many ports", natServices, nft.IPv4, make(v4(3), all)},
		{"a few addresses with a few ports", filterServices, nft.IPv4,
			make(v4(31), few(53, 80, 81, 443, 8080))},
		{"IPv6 addresses", natServices, nft.IPv6, make(v6, few(80, 443, 53))},
		{"IPv6 addresses with many ports", natServices, nft.IPv6, make(v6, all)},
		{"node ports", natNodePorts, nft.IPv4, make(func(*rand.Rand) netip.Addr {
			return netip.IPv4Unspecified()
		}, nodePort)},
		{"node ports of IPv6", filterNodePorts, nft.IPv6, make(func(*rand.Rand) netip.Addr {
			return netip.IPv6Unspecified()
		}, all)},
	}
}

// rangeMakers draw keys of ranges that overlap, at a few addresses or at many.
func rangeMakers() []keyMaker {
	of := func(m keyMaker) keyMaker {
		key := m.key
		m.key = func(r *rand.Rand) sm.FrontendKey {
			k := key(r)
			k.Port = min(k.Port, 65000)
			k.EndPort = k.Port + 1 + uint16(r.IntN(1<<r.IntN(10)))
			return k
		}

		m.name, m.id = "ranges at "+m.name, natRanges
		return m
	}

	m := keyMakers()
	return []keyMaker{of(m[0]), of(m[1]), of(m[3]), of(m[4])}
}

func leafRule(k sm.FrontendKey) []rule {
	r := keyRule(k)
	r.target = targetAccept
	return []rule{r}
}

// grown returns a tree of keys.
func grown(d *dispatch, keys iter.Seq[sm.FrontendKey]) tree {
	edits := map[string][]rule{}
	for k := range keys {
		edits[d.key(k)] = leafRule(k)
	}
	return tree(nil).with(edits)
}

// contents returns all chains of a tree.
func contents(d *dispatch, t tree) map[string][]rule {
	m := map[string][]rule{d.root: d.rules(t, true)}
	d.differing(t, nil, func(id chainID, rules []rule) { m[id.name] = rules })
	return m
}

// A tree has the same chains whatever its history. The reported changes are the real ones.
func TestDispatchChangesOnlyWhatDiffers(t *testing.T) {
	t.Parallel()
	for _, m := range append(keyMakers(), rangeMakers()...) {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			const seed = 1
			rng := rand.New(rand.NewPCG(seed, 0))
			d := newLayout("KUBE").tree(m.f, m.id)
			var tr tree
			have := map[sm.FrontendKey]bool{}
			for step := range 50 {
				before, was := tr, contents(d, tr)
				tr = tr.with(randomEdits(rng, m, d, have, step))
				require.Equal(t, was, contents(d, before), "trees are never changed")
				is := contents(d, tr)
				require.Equal(t, contents(d, grown(d, maps.Keys(have))), is, "seed %d step %d",
					seed, step)

				d.differing(before, tr, func(id chainID, rules []rule) {
					require.Equal(t, was[id.name], rules)
					delete(was, id.name)
				})

				d.differing(tr, before, func(id chainID, rules []rule) { was[id.name] = rules })
				was[d.root] = is[d.root]
				require.Equal(t, is, was, "seed %d step %d", seed, step)
			}
		})
	}
}

// randomEdits adds and removes some keys.
func randomEdits(rng *rand.Rand, m keyMaker, d *dispatch, have map[sm.FrontendKey]bool,
	step int) map[string][]rule {
	edits := map[string][]rule{}
	n := 1 + rng.IntN(3)
	if step%20 == 0 {
		n = 60
	}
	for range n {
		k := m.key(rng)
		if rng.IntN(3) == 0 && len(have) > 0 {
			for k = range have { // any key
				break
			}
			edits[d.key(k)] = nil
			delete(have, k)
		} else {
			edits[d.key(k)] = leafRule(k)
			have[k] = true
		}
	}

	return edits
}

// walker follows a packet through the chains of a tree.
type walker struct {
	chains map[string][]rule
	passed int   // the number of rules that the packet has passed
	found  *rule // the rule that accepted the packet
}

// walk reports whether a rule accepts the packet. After a goto that finds no rule, the packet is
// back in the first chain.
func (w *walker) walk(chain string, k sm.FrontendKey) bool {
	for i := range w.chains[chain] {
		r := &w.chains[chain][i]
		w.passed++
		if !r.matchesKey(k) {
			continue
		}
		switch r.target {
		case targetAccept:
			w.found = r
			return true
		case targetJump:
			if w.walk(r.chain, k) {
				return true
			}
		case targetGoto:
			return w.walk(r.chain, k)
		}
	}

	return false
}

// matchesKey reports whether packets to a frontend match r, by address, protocol and port.
func (r *rule) matchesKey(k sm.FrontendKey) bool {
	return (!r.dst.IsValid() || r.dst.Contains(k.Addr)) &&
		(r.proto == 0 || r.proto == k.Protocol) &&
		(r.ports.any() || r.ports.from <= k.Port && k.Port <= r.ports.to)
}

// A packet finds every key and nothing else, and passes few rules, whatever the number of keys.
func TestDispatchFindsEveryKey(t *testing.T) {
	t.Parallel()
	for _, m := range keyMakers() {
		for _, n := range []int{1, 16, 17, 300, 3000} {
			t.Run(fmt.Sprintf("%s, %d", m.name, n), func(t *testing.T) {
				t.Parallel()
				const seed = 2
				rng := rand.New(rand.NewPCG(seed, uint64(n)))
				d := newLayout("KUBE").tree(m.f, m.id)
				have := map[sm.FrontendKey]bool{}
				for range n {
					have[m.key(rng)] = true
				}
				w := &walker{chains: contents(d, grown(d, maps.Keys(have)))}
				longest := 0
				for k := range have {
					w.passed = 0
					require.True(t, w.walk(d.root, k), "seed %d: %s is not found", seed, k)
					longest = max(longest, w.passed)
				}

				for range 1000 {
					k := m.key(rng)
					require.Equal(t, have[k], w.walk(d.root, k), "seed %d: %s", seed, k)
				}

				require.Less(t, longest, 120)
				for name, rules := range w.chains {
					require.LessOrEqual(t, len(name), maxChainName)
					require.LessOrEqual(t, len(rules), 64, name)
				}
			})
		}
	}
}

func TestStepsAreReadable(t *testing.T) {
	t.Parallel()
	d := newLayout("KUBE").tree(nft.IPv4, natServices)
	var keys []sm.FrontendKey
	for i := range 40 {
		keys = append(keys, sm.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}),
			Protocol: sm.TCP, Port: 80})
	}

	for i := range 20 {
		keys = append(keys, sm.FrontendKey{Addr: netip.MustParseAddr("192.0.2.1"),
			Protocol: sm.UDP, Port: uint16(4000 + i)})
	}

	text := ""
	for _, r := range d.rules(grown(d, slices.Values(keys)), true) {
		text += r.text(sm.IPv4) + "\n"
	}
	require.Equal(t, "-d 10.96.0.0/28 -j KUBE-IP-10.96.0.0/28\n"+
		"-d 10.96.0.16/28 -j KUBE-IP-10.96.0.16/28\n"+
		"-d 10.96.0.32/29 -j KUBE-IP-10.96.0.32/29\n"+
		"-d 192.0.2.1/32 -p udp -m udp --dport 4000:4015 -j KUBE-IP-IS2O7TRRSFYQZC2E\n"+
		"-d 192.0.2.1/32 -p udp -m udp --dport 4016:4019 -j KUBE-IP-SYH46PWSK2TRCKXK\n", text)
}
