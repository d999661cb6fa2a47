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
	// NetNS names the network namespace to clean up.
	NetNS netns.Namespace
	// Logger gets a debug record for each request to the kernel. Nil disables logging.
	Logger *slog.Logger
}

// ErrLegacy says that iptables-legacy's tables, which are not part of nf_tables, contain chains of
// kube-proxy. This package does not delete these chains. "kube-proxy --cleanup" or iptables-legacy
// can do that.
var ErrLegacy = errors.New("legacy tables of iptables have chains of kube-proxy")

// Find returns the objects that [Cleanup] would delete now, without deleting them. It needs
// CAP_NET_ADMIN, for IPVS in the initial user namespace, and CAP_SYS_ADMIN to enter another network
// namespace. If another program changes the ruleset during the reading, Find reads it again, like
// [Cleanup].
//
// The requests may make the kernel load the modules nf_tables, ip_set and nfnetlink_acct. They
// never load IPVS: if its module is not loaded, there are no virtual servers.
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

// withKernel opens the network namespace, and adds the text doing to errors.
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

// Cleanup deletes kube-proxy's objects from the kernel, and nothing else. It returns the deleted
// objects, even together with an error. It can be repeated at any time, also after an error: if
// there is nothing to delete, it does nothing. It needs the same privileges as [Find].
//
// Rules, chains and tables of nf_tables are deleted in one transaction. The kernel refuses the
// transaction if another program changes the ruleset after the reading. Cleanup then reads again,
// up to 20 times, and fails with kernelerr.ErrConflict after that. Virtual servers, the device, IP
// sets and counters are then deleted one by one. The sets and the device show which virtual servers
// belong to kube-proxy. So they are deleted after the virtual servers, or kept if a virtual server
// could not be deleted. Errors name the object; all other objects are deleted nevertheless. If
// legacy tables contain chains of kube-proxy, the error is an [ErrLegacy].
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
	// Service names the service port, such as "default/web:http". It is empty if kube-proxy's
	// objects do not name the service, as in the ipvs mode.
	Service string
	// Endpoints are the endpoints that get the new connections, sorted. Frontends may share the
	// slice, so do not change it. If it is empty, new connections are refused or dropped. If the
	// external traffic policy is Local, these are the endpoints for clients outside the cluster.
	Endpoints []netip.AddrPort
}

// Frontends returns kube-proxy's frontends in the kernel, in the order of the keys. It changes
// nothing, and needs the same privileges as [Find]. It does not read legacy tables of iptables: if
// these contain chains of kube-proxy, the error is an [ErrLegacy]. If kube-proxy writes during the
// call, the result may mix old and new contents.
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
