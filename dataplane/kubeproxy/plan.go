package kubeproxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
)

// Plan lists objects of kube-proxy in one network namespace. They contain the objects that
// [Cleanup] would delete, or has deleted, in the order of deletion. Left contains the objects that
// are kept although they belong to kube-proxy, or seem to. A Plan can be printed, and encoded as
// JSON.
type Plan struct {
	// Rules are rules in other programs' chains that jump to chains of kube-proxy: Family and Name
	// of the table, Chain, Handle, Target and Comment.
	Rules []RuleID `json:"rules,omitempty"`
	// Chains are chains of iptables, with the rules in them: Family and Name of the table, Chain.
	Chains []ChainID `json:"chains,omitempty"`
	// Tables are tables of nf_tables, with everything in them: Family ("ip" or "ip6") and Name.
	Tables []TableID `json:"tables,omitempty"`
	// VirtualServers are virtual servers of IPVS: Protocol ("TCP", "UDP" or "SCTP") and Address.
	VirtualServers []VirtualServer `json:"virtualServers,omitempty"`
	// Device is the dummy device with the addresses of services, or "".
	Device string `json:"device,omitempty"`
	// Sets are IP sets (ipset(8)).
	Sets []string `json:"sets,omitempty"`
	// Counters are accounting objects of nfnetlink_acct (nfacct(8)).
	Counters []string `json:"counters,omitempty"`
	// Left lists the objects that are kept, and the reasons.
	Left []Left `json:"left,omitempty"`
}

// TableID is a table of nf_tables.
type TableID struct {
	Family string `json:"family"` // "ip" or "ip6"
	Name   string `json:"table"`
}

// String returns the table as nft writes it.
func (t TableID) String() string { return t.Family + " " + t.Name }

// ChainID is a chain of a table.
type ChainID struct {
	TableID
	Chain string `json:"chain"`
}

// String returns the chain as nft writes it.
func (c ChainID) String() string { return c.TableID.String() + " " + c.Chain }

func (c ChainID) compare(o ChainID) int { return cmp.Compare(c.String(), o.String()) }

// RuleID is a rule that jumps to another chain of its table.
type RuleID struct {
	ChainID
	Handle  uint64 `json:"handle"` // the rule's handle in its table
	Target  string `json:"target"` // the chain that the rule jumps to
	Comment string `json:"comment,omitempty"`
}

func (r RuleID) compare(o RuleID) int {
	return cmp.Or(r.ChainID.compare(o.ChainID), cmp.Compare(r.Handle, o.Handle))
}

// VirtualServer is a virtual server of IPVS at an address and port.
type VirtualServer struct {
	Protocol string         `json:"protocol"` // "TCP", "UDP" or "SCTP"
	Address  netip.AddrPort `json:"address"`
}

func (v VirtualServer) compare(o VirtualServer) int {
	return cmp.Or(v.Address.Compare(o.Address), cmp.Compare(v.Protocol, o.Protocol))
}

// Left is an object that is kept.
type Left struct {
	Object string `json:"object"`
	Reason string `json:"reason"`

	legacy bool // chains in a legacy table
}

// Empty reports whether there is nothing to delete.
func (p *Plan) Empty() bool {
	return len(p.Rules)+len(p.Chains)+len(p.Tables)+len(p.VirtualServers) == 0 &&
		len(p.Sets)+len(p.Counters)+len(p.Device) == 0
}

// String returns the plan as commands of nft, ipvsadm, ip, ipset and nfacct, one per line, in the
// order of [Cleanup]. Objects that are kept appear as comments.
func (p *Plan) String() string {
	var s strings.Builder
	for _, r := range p.Rules {
		fmt.Fprintf(&s, "nft delete rule %v handle %d # jump %s\n", r.ChainID, r.Handle, r.Target)
	}
	lines(&s, "nft flush chain %v", p.Chains)
	lines(&s, "nft delete chain %v", p.Chains)
	lines(&s, "nft delete table %v", p.Tables)
	for _, v := range p.VirtualServers {
		fmt.Fprintf(&s, "ipvsadm -D %s %v\n", protocolFlags[v.Protocol], v.Address)
	}
	if p.Device != "" {
		fmt.Fprintf(&s, "ip link delete %s\n", p.Device)
	}
	lines(&s, "ipset destroy %s", p.Sets)
	lines(&s, "nfacct delete %s", p.Counters)
	for _, l := range p.Left {
		fmt.Fprintf(&s, "# left: %s: %s\n", l.Object, l.Reason)
	}
	return s.String()
}

// lines writes a line for each object.
func lines[T any](s *strings.Builder, format string, objects []T) {
	for _, o := range objects {
		fmt.Fprintf(s, format+"\n", o)
	}
}

// protocolFlags are ipvsadm's flags for protocols.
var protocolFlags = map[string]string{"TCP": "-t", "UDP": "-u", "SCTP": "--sctp-service"}

// leave adds an object that is kept.
func (p *Plan) leave(object, format string, args ...any) {
	p.Left = append(p.Left, Left{Object: object, Reason: fmt.Sprintf(format, args...)})
}
