package form

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

// walker follows a packet through a program. At a random draw it follows every outcome, each with
// its share.
type walker struct {
	program nft.Program
	in      map[string]bool // the sets that the packet's frontend is in
	not     []string        // matches that fail; all others succeed
	slots   int
	leaf    *Leaf // the chain of the packet's scheduler, nil for the ordinary chains
	lookups float64
	left    float64 // the share of the packets that reached a draw that leaves out slots
}

var (
	drawn    = regexp.MustCompile(`(jhash|numgen).* mod (\d+)( seed \S+)? map @(\S+)`)
	askedFor = regexp.MustCompile(`(!= )?@([a-z0-9-]+)`)
	verdict  = regexp.MustCompile(`(?:^| )(?:(jump|goto) (\S+)|accept|drop|reject|masquerade)`)
)

// chain follows a share of the packets through a chain, and returns the share that returns from the
// chain.
func (w *walker) chain(name string, share float64) (back float64) {
	for _, c := range w.program {
		if c.Name != name {
			continue
		}
		for _, r := range c.Rules {
			if strings.HasSuffix(r.Text(), SetScheduled) {
				w.lookups += share
				if w.leaf != nil {
					return w.chain(w.leaf.chain(), share)
				}
			}

			if strings.HasSuffix(r.Text(), "0 return") { // of a hash of two
				share /= 2
				back += share
			}

			if r.Text() == "ct status dnat return" && w.matches(r.Text(), 0) {
				return back + share
			}
			if share = w.rule(r.Text(), share); share == 0 {
				return back
			}
			if m := verdict.FindStringSubmatch(r.Text()); m != nil && m[1] == "goto" &&
				w.matches(r.Text(), 0) {
				return w.chain(m[2], share)
			}
		}
	}

	return back + share
}

// rule follows a share through a rule, and returns the share that continues with the next rule.
func (w *walker) rule(text string, share float64) float64 {
	if m := drawn.FindStringSubmatch(text); m != nil {
		w.lookups += share
		n, _ := strconv.Atoi(m[2])
		from := 0
		switch {
		case w.slotMap() != m[4]:
			return share
		case w.leaf != nil && w.leaf.Way == ByMaglev:
			return 0
		case m[1] == "jhash": // after a hash of two, a draw in the upper half
			from = n / 2
		}

		hit := share * max(0, float64(min(n, w.slots)-from)/float64(n-from))
		if n < w.slots && m[1] != "jhash" {
			w.left += hit
		}
		return share - hit
	}

	if !w.matches(text, share) {
		return share
	}
	m := verdict.FindStringSubmatch(text)
	switch {
	case m == nil || m[1] == "goto":
		return share
	case m[1] == "jump":
		return w.chain(m[2], share)
	}

	return 0
}

// slotMap is the map that has the slots of the packet's frontend.
func (w *walker) slotMap() string {
	if w.leaf != nil {
		return w.leaf.SlotMap()
	}
	return KindService.Prefix + SetEndpoints
}

// matches reports whether a rule matches, and adds the lookups of a share to the count.
func (w *walker) matches(text string, share float64) bool {
	end := len(text)
	for _, not := range w.not {
		if i := strings.Index(text, not); i >= 0 {
			end = min(end, i)
		}
	}

	for _, m := range askedFor.FindAllStringSubmatch(text[:end], -1) {
		w.lookups += share
		if w.in[m[2]] == (m[1] != "") {
			return false
		}
	}

	return end == len(text)
}

// walkerOf follows a packet to a cluster IP with this number of slots. large says whether the node
// has a pool beyond SmallClasses.
func walkerOf(slots int, large bool) *walker {
	s := Shape{}
	if large {
		s.Uses = LargePools
	}
	return walkerIn(&s, slots)
}

// walkerIn returns a walker for a program of a shape.
func walkerIn(sh *Shape, slots int) *walker {
	rules := servicemodel.Rules{MasqueradeMark: 0x1000,
		NodePorts: []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)}}
	w := &walker{program: new(Hooks).Program(nft.IPv4, rules, sh),
		slots: slots,
		in:    map[string]bool{}, not: []string{"meta mark &"}}
	if slots > 0 {
		w.in["services"] = true
		for than := range AllClasses - 1 {
			w.in[KindService.Prefix+OverName(SetOver, than)] = isOver(ClassOf(slots), than)
		}
	}

	return w
}

// Each slot has the same chance, except for less than 2^-18 of the packets, and every packet finds
// a slot.
func TestSlotsAreDrawnFairly(t *testing.T) {
	t.Parallel()
	for n := 1; n <= MaxSlots; n += 1 + n/200 {
		for _, slots := range []int{n, MostSlots(ClassOf(n)) - 1, MostSlots(ClassOf(n))} {
			requireFair(t, slots, true)
			if slots <= MostSlots(SmallClasses-1) {
				requireFair(t, slots, false)
			}
		}
	}
}

func requireFair(t *testing.T, slots int, large bool) {
	t.Helper()
	w := walkerOf(slots, large)
	require.Less(t, w.chain("services", 1), 1e-12, slots)
	biased := 0.
	if w.left > 0 {
		biased = w.left * (1 - float64(MostSlots(ClassOf(slots))/2)/float64(slots))
	}
	require.Less(t, biased, math.Exp2(-18), slots)
	require.LessOrEqual(t, MostSlots(ClassOf(slots)), 2*slots)
}

// The documentation says how many lookups a packet makes.
func TestLookupsAreDocumented(t *testing.T) {
	t.Parallel()
	text := must.OK(os.ReadFile("../../../docs/performance.md"))(t)
	var by *Leaf
	scheduled := Shape{}
	row := func(what string, slots int, large bool, not ...string) {
		counts := ""
		for _, hook := range []string{"nat-prerouting", "filter-forward", "nat-postrouting"} {
			if scheduled.Uses &^= LargePools; large {
				scheduled.Uses |= LargePools
			}
			w := walkerIn(&scheduled, slots)
			w.leaf = by
			if by != nil {
				w.in = map[string]bool{"services": true}
			}
			w.not = append(w.not, not...)
			if strings.HasPrefix(hook, "filter") {
				clear(w.in) // the packet has the address of its endpoint
			}
			if established := len(not) > 0 && not[0] == "ct state new"; !established ||
				!strings.HasPrefix(hook, "nat") {
				w.chain(hook, 1)
			}

			counts += fmt.Sprintf(" %.1f |", w.lookups)
		}

		line := "| " + what + " |" + counts + "\n"
		assert.True(t, strings.Contains(string(text), line), line)
	}

	for _, slots := range []int{1, 2, 3, 10, 100} {
		row(fmt.Sprintf("first packet, a pool of %d", slots), slots, false)
	}
	for _, slots := range []int{1, 10, 100, 400, 5000} {
		row(fmt.Sprintf("first packet, a pool of %d, and one of 129 exists", slots), slots, true)
	}
	row("first packet to no service", 0, false, "ct status dnat")
	row("further packets", 3, false, "ct state new")

	scheduled.Affinity = []Affinity{{Seconds: 10800}}
	row("first packet, a pool of 10, and services with session affinity exist", 10, false)
	scheduled.Affinity = nil
	all := []*Leaf{{Kind: KindService, Way: InTurn, Slots: 10}, {Kind: KindService, Way: ByHash,
		Slots: 16}, {Kind: KindService, Way: ByMaglev, Slots: 1021}}
	for _, l := range all {
		scheduled.Uses, scheduled.Leaves = scheduled.Uses|Ways, append(scheduled.Leaves,
			l.chain())
	}

	row("first packet, a pool of 10, and services with schedulers exist", 10, false)
	for i, name := range []string{"`rr`", "`sh`", "`mh`"} {
		by = all[i]
		row("first packet, a pool of 10, "+name, 10, false)
	}
}
