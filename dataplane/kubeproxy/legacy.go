package kubeproxy

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// The legacy tables of iptables are not in nf_tables. With iptables-legacy, the kernel reads and
// writes each table as a whole, by socket options. This package only reads them. Their users run
// tools that replace tables under a lock file, and a replacement of ours could undo one of theirs.

// legacyFamily is a family of legacy tables: struct ipt_entry and struct ip6t_entry
// (include/uapi/linux/netfilter_ipv4/ip_tables.h, netfilter_ipv6/ip6_tables.h).
type legacyFamily struct {
	family  string // of the same tables in nf_tables
	program string
	names   string // file of the names of the tables that there are
	ipv6    bool
	offsets int // where an entry has target_offset and, 2 bytes later, next_offset
}

var legacyFamilies = []legacyFamily{
	{"ip", "iptables-legacy", "/proc/thread-self/net/ip_tables_names", false, 88},
	{"ip6", "ip6tables-legacy", "/proc/thread-self/net/ip6_tables_names", true, 140},
}

// Sizes and names in struct xt_entry_target and struct xt_error_target
// (include/uapi/linux/netfilter/x_tables.h).
const (
	targetName    = 2 // where its name is
	targetNameLen = 29
	targetLen     = 32 // the name of a chain follows, in the entry that begins a chain
	chainNameLen  = 30
	errorTarget   = "ERROR" // the target of an entry that begins a chain
)

// chainsOf returns the names of the user-defined chains in the entries of a legacy table.
func (f *legacyFamily) chainsOf(entries []byte) ([]string, error) {
	var chains []string
	text := func(b []byte) string {
		s, _, _ := strings.Cut(string(b), "\x00")
		return s
	}
	for len(entries) > 0 {
		if len(entries) < f.offsets+4 {
			return nil, fmt.Errorf("an entry of %d bytes", len(entries))
		}
		target := int(binary.NativeEndian.Uint16(entries[f.offsets:]))
		next := int(binary.NativeEndian.Uint16(entries[f.offsets+2:]))
		if next > len(entries) || target+targetLen > next || target < f.offsets {
			return nil, fmt.Errorf("an entry of %d bytes with its target at %d", next, target)
		}
		t := entries[target:next]
		if text(t[targetName:targetName+targetNameLen]) == errorTarget &&
			len(t) >= targetLen+chainNameLen {
			chains = append(chains, text(t[targetLen:targetLen+chainNameLen]))
		}
		entries = entries[next:]
	}
	return chains, nil
}

// leaveLegacy notes the chains of kube-proxy in a legacy table.
func (p *Plan) leaveLegacy(f *legacyFamily, table string, chains []string) {
	o := owner{}
	chains = slices.DeleteFunc(chains, func(c string) bool {
		return !o.owns(Chain{Table{f.family, table}, c})
	})
	if len(chains) == 0 {
		return
	}
	slices.Sort(chains)
	some := strings.Join(chains[:min(len(chains), 3)], ", ")
	p.Left = append(p.Left, Left{Object: "table " + table + " of " + f.program, legacy: true,
		Reason: fmt.Sprintf("it is a legacy table, which kernlb does not change: kube-proxy "+
			"--cleanup deletes its %d chains there, such as %s", len(chains), some)})
}
