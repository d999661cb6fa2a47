package iptables

import (
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// The sysctl route_localnet belongs to the guards: rules in chains KUBE-FIREWALL that drop what
// comes from elsewhere for a loopback address. Whoever wants node ports at localhost puts a
// guard, then turns the sysctl on; kube-proxy does, and each instance of this backend. Where it
// is on and there is no guard, it was the administrator who turned it on. That is what is
// recorded before it is touched, in KUBE-SETTINGS and in the transaction that brings the guard:
// on, if it is on without any guard; else off.
//
// When node ports no longer answer at localhost, it is turned off, unless it was on before or
// another guard is there: then others rely on it, and it stays on. So whoever puts the last
// guard away turns it off. If somebody turned it on for himself while it was on, nothing tells.

// localnet is what there is about the sysctl route_localnet.
type localnet struct {
	on bool
	// before says that it was on before node ports answered at localhost, or, while they do not,
	// that it is on and nobody's guard is there.
	before bool
	// guarded says that a chain of somebody else has a guard.
	guarded bool
}

// localnetOf finds out what there is about route_localnet, as long as node ports do not answer at
// localhost.
func (l *layout) localnetOf(r *raw) localnet {
	n := localnet{on: r.routeLocalnet}
	own := false
	for name, c := range r.tables[0][filter].chains {
		if !mayGuard(name) || !hasGuard(c.rules) {
			continue
		}
		if name == l.names.localnet() {
			own = true
		} else {
			n.guarded = true
		}
	}
	n.before = n.on && !own && !n.guarded
	return n
}

// mayGuard reports whether a chain of table filter of IPv4 may have a guard.
func mayGuard(chain string) bool { return strings.HasSuffix(chain, guardSuffix) }

func hasGuard(rules []rule) bool {
	g := guard(nft.IPv4)
	for i := range rules {
		if rules[i].same(&g) {
			return true
		}
	}
	return false
}

// planLocalnet says what becomes of route_localnet.
func (l *layout) planLocalnet(k *kernelState, old, next *servicemodel.Rules) sysctlChange {
	was, want := l.localhost(nft.IPv4, old), l.localhost(nft.IPv4, next)
	switch n := k.localnet; {
	case want && !n.on:
		return sysctlOn
	case was && !want && n.on && !n.before && !n.guarded:
		return sysctlOff
	}
	return sysctlKeep
}
