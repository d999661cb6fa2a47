package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/servicemodel"
)

// Config names the network namespace. A nil *Config is the zero Config.
type Config struct {
	// NetNS names the network namespace to work in.
	NetNS netns.Namespace
	// Logger gets a debug record for each request to the kernel. Nil means silence.
	Logger *slog.Logger
}

// ErrLegacy says that the legacy tables of iptables, which are not in nf_tables, have chains of
// kube-proxy. This package leaves them alone. "kube-proxy --cleanup" or iptables-legacy delete
// them.
var ErrLegacy = errors.New("legacy tables of iptables have chains of kube-proxy")

// Find returns what [Cleanup] would delete now, and changes nothing. It needs CAP_NET_ADMIN, for
// IPVS in the initial user namespace, and CAP_SYS_ADMIN to enter another network namespace. If
// another program changes the ruleset meanwhile, Find reads it again, as [Cleanup] does.
//
// The requests may make the kernel load the modules nf_tables, ip_set and nfnetlink_acct. They
// never load IPVS: without the module there are no virtual servers.
func Find(ctx context.Context, cfg *Config) (*Plan, error) {
	var found *Plan
	err := withKernel(cfg, "look for kube-proxy", func(k *kernel) (err error) {
		found, err = k.find(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// withKernel opens the network namespace, and adds to errors what was being done.
func withKernel(cfg *Config, doing string, do func(*kernel) error) error {
	k, err := open(cfg)
	if err == nil {
		defer k.close()
		err = do(k)
	}

	if err != nil {
		return fmt.Errorf("%s: %w", doing, kernelerr.Permission(err))
	}
	return nil
}

// Cleanup deletes kube-proxy's objects from the kernel, and nothing else. It returns what it has
// deleted, also with an error. If there is nothing to delete, it does nothing, so it can be
// repeated after any error and at any time. It needs the same privileges as [Find].
//
// Rules, chains and tables of nf_tables go in one transaction. The kernel refuses it if another
// program has changed the ruleset since it was read. Cleanup then reads again, up to 20 times, and
// fails with kernelerr.ErrConflict after that. Virtual servers, the device, IP sets and counters
// follow one by one. The sets and the device come after the virtual servers, because they tell
// which of these are kube-proxy's; both stay if a virtual server stays. Errors name the object; the
// other objects are deleted nevertheless. If legacy tables have chains of kube-proxy, the error is
// an [ErrLegacy].
func Cleanup(ctx context.Context, cfg *Config) (*Plan, error) {
	done := &Plan{}
	err := withKernel(cfg, "clean up after kube-proxy", func(k *kernel) (err error) {
		done, err = k.cleanup(ctx)
		return err
	})
	return done, err
}

// Frontend is an address and port that kube-proxy serves. For a node port, the address is
// unspecified.
type Frontend struct {
	Key servicemodel.FrontendKey
	// Service names the port of the service, such as "default/web:http". It is empty if
	// kube-proxy's objects do not name the service, as in the ipvs mode.
	Service string
	// Endpoints get the new connections, sorted. Frontends may share the slice, so it must not be
	// changed. Without endpoints, new connections are refused or
	// dropped. If the external traffic policy is Local, these are the endpoints for clients outside
	// the cluster.
	Endpoints []netip.AddrPort
}

// Frontends returns what kube-proxy serves according to its objects in the kernel, in the order of
// the keys. It changes nothing, and needs the same privileges as [Find]. It does not read legacy
// tables of iptables: if these have chains of kube-proxy, the error is an [ErrLegacy]. While
// kube-proxy writes, the result may mix several moments.
func Frontends(ctx context.Context, cfg *Config) ([]Frontend, error) {
	c := map[servicemodel.FrontendKey]Frontend{}
	err := withKernel(cfg, "read kube-proxy's services",
		func(k *kernel) error { return k.readContents(ctx, c) })
	if err != nil {
		return nil, err
	}
	return slices.SortedFunc(maps.Values(c), func(a, b Frontend) int {
		return a.Key.Compare(b.Key)
	}), nil
}
