package hooks

import (
	"fmt"

	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/servicemodel"
)

// Config names the network namespace. A nil *Config is the zero Config.
type Config struct {
	// NetNS names the network namespace to read.
	NetNS netns.Namespace
}

// Hook is a place where netfilter passes packets to chains. Its value is its name as nft writes it,
// or its number, such as "hook 5".
type Hook string

// The hooks for IP packets.
const (
	Prerouting  Hook = "prerouting"  // incoming packets, before they are routed
	Input       Hook = "input"       // packets for this node
	Forward     Hook = "forward"     // packets for other machines
	Output      Hook = "output"      // packets of this node
	Postrouting Hook = "postrouting" // outgoing packets, after they are routed
)

// hookOf returns a hook from its number in enum nf_inet_hooks (include/uapi/linux/netfilter.h).
func hookOf(number uint32) Hook {
	names := [...]Hook{Prerouting, Input, Forward, Output, Postrouting}
	if int(number) < len(names) {
		return names[number]
	}
	return Hook(fmt.Sprintf("hook %d", number))
}

// Chain is a base chain of nf_tables. Packets pass the chains of a hook in the order of priority,
// lowest first.
type Chain struct {
	Family   string `json:"family"` // "ip", "ip6" or "inet"
	Table    string `json:"table"`
	Name     string `json:"name"`
	Type     string `json:"type"` // "filter", "nat" or "route"
	Hook     Hook   `json:"hook"`
	Priority int32  `json:"priority"`
	// DropsByDefault means that the policy is drop: a packet that no rule accepts is dropped.
	DropsByDefault bool `json:"dropsByDefault,omitzero"`
	// Accepts means that a rule, in the chain or in chains that it jumps to, may accept packets
	// that start connections: by a verdict, by a map with verdicts, or by a queue.
	Accepts bool `json:"accepts,omitzero"`
	// Drops are the rules in the chain, or in chains that it jumps to, that drop or reject packets.
	// Verdicts in maps are ignored.
	Drops []Rule `json:"drops,omitempty"`
}

// Rule is a rule of nf_tables.
type Rule struct {
	Chain   string `json:"chain"` // in the same table
	Handle  uint64 `json:"handle"`
	Comment string `json:"comment,omitempty"`
	Text    string `json:"text"` // similar to the output of nft
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
