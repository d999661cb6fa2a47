// Package instance knows the names of the kernel objects of an instance: of the commands kernlb and
// kernlb-top, and of the other programs of this project.
package instance

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// Default is the owner of the kernel objects if none is named.
const Default = "kernlb"

// Candidates returns the backends of an instance, the default first, in the network namespace of
// the calling thread. vs has the other settings of ipvs.
func Candidates(name string, vs ipvs.Config) []backends.Candidate {
	vs.Table = IPVSTable(name)
	return []backends.Candidate{
		nftables.Candidate(&nftables.Config{Table: name}),
		iptables.Candidate(&iptables.Config{Prefix: ChainPrefix(name)}),
		ipvs.Candidate(&vs),
	}
}

// Program is a program of this project, with the names of its objects.
type Program struct {
	Instance string // the table of nf_tables
	Is       string // a description of the program
	chains   string // the beginning of its chains' names; empty: as for other instances
}

// Programs are the programs whose instances have names of their own. The chains of the default
// instance have kube-proxy's names, which administrators know.
func Programs() []Program {
	return []Program{
		{Instance: Default, Is: "kernlb, nodeproxy or kubeproxy", chains: "KUBE"},
		{Instance: "kernlb-cni", Is: "the CNI plugin"},
		{Instance: "kernlb-kubeproxy", Is: "kubeproxy in its mode iptables", chains: "KERNLB"},
		{Instance: "loadbalancer", Is: "the load balancer", chains: "LB"},
	}
}

// program returns the program that owns an instance, or a program without special names.
func program(name string) Program {
	for _, p := range Programs() {
		if p.Instance == name {
			return p
		}
	}

	return Program{Instance: name}
}

// IPVSTable is the companion table of an instance.
func IPVSTable(name string) string { return name + "-ipvs" }

// ChainPrefix returns the beginning of the names of an instance's chains. For an instance of no
// known program it has seven characters, because a chain's name has no room for more.
func ChainPrefix(name string) string {
	if prefix := program(name).chains; prefix != "" {
		return prefix
	}
	sum := sha256.Sum256([]byte(name))
	return "K" + base32.StdEncoding.EncodeToString(sum[:])[:6]
}

// Owns returns a function that reports whether a chain belongs to an instance. If chain is empty,
// it reports whether the table does.
func Owns(name string) func(table, chain string) bool {
	prefix := ChainPrefix(name) + "-"
	return func(table, chain string) bool {
		return table == name || table == IPVSTable(name) || strings.HasPrefix(chain, prefix)
	}
}

// Counters opens the counters of an instance on nftables or iptables.
func Counters(name string) (*counters.Counters, error) {
	return counters.Open(&counters.Config{Table: name + "-counters"})
}

// Source is a [counters.Source] that must be closed.
type Source interface {
	counters.Source
	io.Closer
}

// OpenSource opens the counters for an instance of a backend.
func OpenSource(backend, name string) (Source, error) {
	if backend == ipvs.Name {
		return ipvs.OpenCounters(&ipvs.Config{Table: IPVSTable(name)})
	}
	return Counters(name)
}

// Locality returns the addresses of the node, in the network namespace of the calling thread.
func Locality() (here servicemodel.Locality, err error) {
	l, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("the addresses of this node: %w", err)
	}
	for _, a := range l {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			here = append(here, p.Addr().Unmap())
		}
	}

	return here, nil
}
