package vmtest

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// defaultModules are patterns, as for [path.Match], of the kernel modules that
// every image holds: what a service dataplane can touch, and what tests of one
// need around it. A pattern that matches nothing is no error, since kernels
// differ in what they have and in what is built in.
var defaultModules = []string{
	// IPVS with all schedulers, and the tunnels it forwards through.
	"ip_vs*", "ipip", "ip_gre", "ip6_gre", "gre", "sit", "ip6_tunnel", "tunnel4", "tunnel6", "fou",
	"fou6",
	// nf_tables, conntrack, NAT; the nfnetlink family.
	"nft_*", "nf_*", "nfnetlink*",
	// x_tables and ipset, of either address family.
	"x_tables", "xt_*", "ip_tables", "ipt_*", "iptable_*", "ip6_tables", "ip6t_*", "ip6table_*",
	"ip_set*",
	// Links that fixtures make; netem for delay and loss.
	"dummy", "veth", "bridge", "br_netfilter", "8021q", "vrf", "macvlan", "ipvlan", "tun", "ifb",
	"sch_netem", "act_mirred",
	// SCTP, with the digests that its cookies ask for by name.
	"sctp", "sctp_diag", "libcrc32c", "crc32*", "hmac", "md5", "sha1*", "sha256*",
	// What ss and tcpdump ask.
	"inet_diag", "tcp_diag", "udp_diag", "raw_diag", "unix_diag", "af_packet*", "netlink_diag",
}

// moduleIndex is modules.dep: module names to files and what they need.
type moduleIndex map[string]moduleEntry

type moduleEntry struct {
	// Path below the modules directory of the kernel.
	Path string
	// Needs are the paths of the modules it depends on.
	Needs []string
}

// moduleName turns a file's path into the name the kernel uses: no directory, no
// extension, underscores for dashes.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// parseModulesDep reads the format that depmod writes, modules.dep(5): a line for
// each module, "path: path path ...".
func parseModulesDep(text string) moduleIndex {
	index := make(moduleIndex)
	for line := range strings.Lines(text) {
		file, needs, ok := strings.Cut(strings.TrimSpace(line), ":")
		if ok && file != "" {
			index[moduleName(file)] = moduleEntry{Path: file, Needs: strings.Fields(needs)}
		}
	}
	return index
}

// choose returns the paths of the modules that match a pattern and of all they
// need, sorted.
func (index moduleIndex) choose(patterns []string) ([]string, error) {
	chosen := make(map[string]bool)
	var todo []string
	for _, p := range patterns {
		for name := range index {
			ok, err := path.Match(strings.ReplaceAll(p, "-", "_"), name)
			if err != nil {
				return nil, fmt.Errorf("module pattern %q: %w", p, err)
			}
			if ok {
				todo = append(todo, index[name].Path)
			}
		}
	}
	for len(todo) > 0 {
		file := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if !chosen[file] {
			chosen[file] = true
			todo = append(todo, index[moduleName(file)].Needs...)
		}
	}
	out := make([]string, 0, len(chosen))
	for file := range chosen {
		out = append(out, file)
	}
	slices.Sort(out)
	return out, nil
}
