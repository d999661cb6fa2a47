package main

import (
	"fmt"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
)

// instance is the owner of the objects in the kernel.
const instance = "loadbalancer"

// openBackend opens a kernel mechanism.
func openBackend(name string) (dataplane.Backend, error) {
	switch name {
	case "nftables":
		return nftables.New(&nftables.Config{Table: instance})
	case "iptables":
		return iptables.New(&iptables.Config{Prefix: "LB"})
	case "ipvs":
		// Each service has its own drain time, so there is no common limit.
		return ipvs.New(&ipvs.Config{Table: instance, DrainLimit: -1})
	}
	return nil, fmt.Errorf("-backend: %q: must be nftables, iptables or ipvs", name)
}
