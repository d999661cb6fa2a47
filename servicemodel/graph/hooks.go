package graph

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// Hook is a place where netfilter hands packets to chains.
type Hook uint8

// The hooks, with the numbers of enum nf_inet_hooks (include/uapi/linux/netfilter.h).
const (
	Prerouting  Hook = iota // packets that come in, before they are routed
	Input                   // packets for this node
	Forward                 // packets for others
	Output                  // packets of this node
	Postrouting             // packets that leave
)

// String returns the name of the hook as nft writes it.
func (h Hook) String() string {
	names := [...]string{"prerouting", "input", "forward", "output", "postrouting"}
	if int(h) < len(names) {
		return names[h]
	}
	return fmt.Sprintf("hook %d", uint8(h))
}

// MarshalText returns the name of the hook.
func (h Hook) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// Chain is a base chain of nf_tables: packets pass those of their hook in the order of the
// priorities, the lowest first.
type Chain struct {
	Family   string `json:"family"` // "ip", "ip6" or "inet"
	Table    string `json:"table"`
	Name     string `json:"name"`
	Type     string `json:"type"` // "filter", "nat" or "route"
	Hook     Hook   `json:"hook"`
	Priority int32  `json:"priority"`
	// DropsByDefault says that the policy is drop: what no rule accepts is lost.
	DropsByDefault bool `json:"dropsByDefault,omitzero"`
	// Drops are the rules that drop or reject packets, in the chain or in chains that it leads to.
	Drops []Rule `json:"drops,omitempty"`
}

// Rule is a rule of nf_tables.
type Rule struct {
	Chain   string `json:"chain"` // in the same table
	Handle  uint64 `json:"handle"`
	Comment string `json:"comment,omitempty"`
	Text    string `json:"text"` // much as nft lists it
}

// String returns `forward, handle 7: tcp dport 80 drop ("no web")`.
func (r Rule) String() string {
	s := fmt.Sprintf("%s, handle %d: %s", r.Chain, r.Handle, r.Text)
	if r.Comment != "" {
		s += fmt.Sprintf(" (%q)", r.Comment)
	}
	return s
}

// String returns "inet fw forward".
func (c Chain) String() string { return c.Family + " " + c.Table + " " + c.Name }

// Sees reports whether packets of a family pass the chain.
func (c Chain) Sees(f servicemodel.Family) bool {
	own := "ip"
	if f == servicemodel.IPv6 {
		own = "ip6"
	}
	return c.Family == own || c.Family == "inet"
}

// conntrackPriority is where conntrack looks flows up: NF_IP_PRI_CONNTRACK
// (include/uapi/linux/netfilter_ipv4.h).
const conntrackPriority = -200

// maxDrops is how many rules that drop are drawn in a chain.
const maxDrops = 3

// Hooks draws the way of packets of a family through the chains. Chains for which ours is true are
// drawn as kernlb's, the others as those of other programs; what of these drops packets is named.
func Hooks(chains []Chain, f servicemodel.Family, ours func(*Chain) bool) *Graph {
	h := hooks{Graph: &Graph{title: "The way of " + f.String() + " packets", ways: true},
		ours: ours}
	for i := range chains {
		if c := &chains[i]; c.Sees(f) && c.Hook <= Postrouting {
			h.at[c.Hook] = append(h.at[c.Hook], c)
		}
	}
	in := h.add(h.group(0, 0, ""), aside, "comes in")
	routing := h.add(h.group(2, 0, ""), aside, "routing")
	process := h.add(h.group(4, 0, ""), aside, "programs", "of this node")
	out := h.add(h.group(7, 0, ""), aside, "leaves")
	h.hook(Prerouting, 1, 0, in, routing, "")
	h.hook(Input, 3, 0, routing, process, "to this node")
	after := h.postrouting(out)
	h.hook(Output, 5, 0, process, after, "")
	h.hook(Forward, 3, 1, routing, after, "to others")
	return h.Graph
}

// hooks is the drawing of chains.
type hooks struct {
	*Graph
	at   [Postrouting + 1][]*Chain
	ours func(*Chain) bool
}

// postrouting draws that hook, and returns what comes first there.
func (h *hooks) postrouting(out *box) *box {
	b := h.boxesOf(Postrouting, 6, 0)
	if len(b) == 0 {
		return out
	}
	h.connect(b[len(b)-1], out, "")
	return b[0]
}

// hook draws a hook between two boxes.
func (h *hooks) hook(n Hook, column, row int, from, to *box, text string) {
	b := h.boxesOf(n, column, row)
	if len(b) == 0 {
		h.connect(from, to, text)
		return
	}
	h.connect(from, b[0], text)
	h.connect(b[len(b)-1], to, "")
}

// boxesOf draws the chains of a hook, one after the other.
func (h *hooks) boxesOf(n Hook, column, row int) []*box {
	tracks := n == Prerouting || n == Output
	if len(h.at[n]) == 0 && !tracks {
		return nil
	}
	g := h.group(column, row, n.String())
	slices.SortStableFunc(h.at[n], func(a, b *Chain) int {
		return cmp.Compare(a.Priority, b.Priority)
	})
	for _, c := range h.at[n] {
		if tracks && c.Priority > conntrackPriority {
			h.add(g, aside, "conntrack")
			tracks = false
		}
		h.chain(g, c)
	}
	if tracks {
		h.add(g, aside, "conntrack")
	}
	for i := 1; i < len(g.boxes); i++ {
		h.connect(g.boxes[i-1], g.boxes[i], "")
	}
	return g.boxes
}

func (h *hooks) chain(g *group, c *Chain) {
	lines := []string{c.Family + " " + c.Table, c.Name,
		fmt.Sprintf("%s, priority %d", c.Type, c.Priority)}
	if h.ours(c) {
		h.add(g, plain, lines...)
		return
	}
	l := foreign
	if c.DropsByDefault {
		lines = append(lines, "policy drop")
		l = refuses
	}
	for i, r := range c.Drops {
		l = refuses
		if i == maxDrops {
			lines = append(lines, fmt.Sprintf("%d more rules drop", len(c.Drops)-i))
			break
		}
		lines = append(lines, wrap("drops: "+r.String(), 36)...)
	}
	h.add(g, l, lines...)
}
