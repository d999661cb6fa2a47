package graph

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/servicemodel"
)

// conntrackPriority is the priority at which conntrack looks up flows: NF_IP_PRI_CONNTRACK
// (include/uapi/linux/netfilter_ipv4.h).
const conntrackPriority = -200

// maxDrops is the number of dropping rules drawn per chain.
const maxDrops = 3

// Hooks draws the path of a family's packets through chains that package dataplane/hooks has read.
// Chains for which ours returns true are drawn as chains of kernlb. All other chains are drawn as
// chains of other programs, with their rules that drop packets. If ours is nil, all chains belong
// to other programs.
func Hooks(chains []hooks.Chain, f servicemodel.Family, ours func(*hooks.Chain) bool) *Graph {
	h := hookDrawing{Graph: &Graph{title: "The way of " + f.String() + " packets", ways: true},
		at: map[hooks.Hook][]*hooks.Chain{}, ours: ours}
	if ours == nil {
		h.ours = func(*hooks.Chain) bool { return false }
	}
	for i := range chains {
		if c := &chains[i]; c.Sees(f) {
			h.at[c.Hook] = append(h.at[c.Hook], c)
		}
	}

	in := h.add(h.group(0, 0, ""), aside, "comes in")
	routing := h.add(h.group(2, 0, ""), aside, "routing")
	process := h.add(h.group(4, 0, ""), aside, "programs", "of this node")
	out := h.add(h.group(7, 0, ""), aside, "leaves")
	h.hook(hooks.Prerouting, 1, 0, in, routing, "")
	h.hook(hooks.Input, 3, 0, routing, process, "to this node")
	after := h.boxesOf(hooks.Postrouting, 6, 0)
	h.connect(after[len(after)-1], out, "")
	h.hook(hooks.Output, 5, 0, process, after[0], "")
	h.hook(hooks.Forward, 3, 1, routing, after[0], "to others")
	return h.Graph
}

type hookDrawing struct {
	*Graph
	at   map[hooks.Hook][]*hooks.Chain
	ours func(*hooks.Chain) bool
}

// hook draws a hook between two boxes.
func (h *hookDrawing) hook(n hooks.Hook, column, row int, from, to *box, text string) {
	b := h.boxesOf(n, column, row)
	h.connect(from, b[0], text)
	h.connect(b[len(b)-1], to, "")
}

// boxesOf draws the chains of a hook, one after the other. There is always a box, so that no
// arrow passes a hook.
func (h *hookDrawing) boxesOf(n hooks.Hook, column, row int) []*box {
	tracks := n == hooks.Prerouting || n == hooks.Output
	g := h.group(column, row, string(n))
	if len(h.at[n]) == 0 && !tracks {
		h.add(g, aside, "no chains")
	}
	slices.SortStableFunc(h.at[n], func(a, b *hooks.Chain) int {
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

func (h *hookDrawing) chain(g *group, c *hooks.Chain) {
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
