// Package instance knows what the kernel objects of an instance of the commands are called: kernlb,
// and kernlb-top beside it.
package instance

import (
	"crypto/sha256"
	"encoding/base32"
	"io"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
)

// Default is the owner of the kernel objects if none is named.
const Default = "kernlb"

// Candidates are the backends of an instance, the default first, in the network namespace of the
// calling thread. The configuration says the rest of ipvs.
func Candidates(name string, vs ipvs.Config) []dataplane.Candidate {
	vs.Table = ipvsTable(name)
	return []dataplane.Candidate{
		nftables.Candidate(&nftables.Config{Table: name}),
		iptables.Candidate(&iptables.Config{Prefix: ChainPrefix(name)}),
		ipvs.Candidate(&vs),
	}
}

func ipvsTable(name string) string { return name + "-ipvs" }

// ChainPrefix is what the names of an instance's chains begin with: kube-proxy's for the default
// instance, which administrators know, else seven characters, since a chain's name has room for no
// more.
func ChainPrefix(name string) string {
	if name == Default {
		return iptables.DefaultPrefix
	}
	sum := sha256.Sum256([]byte(name))
	return "K" + base32.StdEncoding.EncodeToString(sum[:])[:6]
}

// Counters opens the counters of an instance that nftables and iptables have.
func Counters(name string) (*counters.Counters, error) {
	return counters.Open(&counters.Config{Table: name + "-counters"})
}

// Source is a [counters.Source] that is closed in the end.
type Source interface {
	counters.Source
	io.Closer
}

// OpenSource opens what counts for an instance of a backend.
func OpenSource(backend, name string) (Source, error) {
	if backend == ipvs.Name {
		return ipvs.OpenCounters(&ipvs.Config{Table: ipvsTable(name)})
	}
	return Counters(name)
}
