package iptables

import (
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// The sysctl route_localnet goes with the guards. A guard is a rule in a chain KUBE-FIREWALL that
// drops packets from elsewhere to a loopback address. A program that wants node ports at localhost
// adds a guard and then turns the sysctl on. kube-proxy does so, and so does each instance of this
// backend. If the sysctl is on without any guard, the administrator turned it on. Before the
// backend changes the sysctl, the transaction that brings the guard records its earlier value in
// KUBE-SETTINGS: on if it is on without any guard, otherwise off.
//
// When node ports no longer answer at localhost, the backend turns the sysctl off, unless it was on
// before or another guard exists: then other programs rely on it, and it stays on. So the program
// that removes the last guard turns it off. If a program turns it on while it is on, nothing shows
// that.

// localnet is the state of the sysctl route_localnet and its guards.
type localnet struct {
	on bool
	// before says that the sysctl was on before node ports answered at localhost. While they do not
	// answer there, it says that the sysctl is on and no guard exists.
	before bool
	// kept says that a guard was in the instance's chain before node ports answered at localhost.
	// While they do not answer there, it says that a guard is there now. Such a guard stays:
	// kubelet and kube-proxy put the same rule into the same chain.
	kept bool
	// guarded says that another program's chain has a guard.
	guarded bool
	// lost says that this process turned the sysctl on, and that the rules were flushed since, with
	// the guard and the record.
	lost bool
}

// localnetOf finds out the state of route_localnet while node ports do not answer at localhost.
func (l *layout) localnetOf(r *raw) localnet {
	n := localnet{on: r.routeLocalnet}
	g := guard(nft.IPv4)
	for id, c := range r.chains {
		switch {
		case !mayGuard(id):
		case !slices.ContainsFunc(c.rules, func(r rule) bool { return r.same(&g) }):
		case id.name == l.names.localnet():
			n.kept = true
		default:
			n.guarded = true
		}
	}
	n.before = n.on && !n.kept && !n.guarded
	return n
}

// mayGuard reports whether a chain may have a guard.
func mayGuard(id chainID) bool {
	return id.table == filter4 && strings.HasSuffix(id.name, guardSuffix)
}

// planLocalnet returns the change of route_localnet.
func (l *layout) planLocalnet(k *kernelState, old, next *servicemodel.Rules) sysctlChange {
	was, want := l.localhost(nft.IPv4, old), l.localhost(nft.IPv4, next)
	switch n := k.localnet; {
	case want && !n.on:
		return sysctlOn
	case (was || n.lost) && !want && n.on && !n.before && !n.guarded:
		return sysctlOff
	}
	return sysctlKeep
}
