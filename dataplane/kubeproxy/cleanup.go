package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/kernlb/kernlb/internal/refusal"
)

// Config says where to look. A nil *Config is the zero Config.
type Config struct {
	// NetNS is a file descriptor of the network namespace to work in, and NetNSPath its path, such
	// as "/run/netns/blue" or "/proc/1234/ns/net": either, used only during the call. Zero and
	// empty mean that of the calling thread.
	NetNS     int
	NetNSPath string
	// Logger gets a debug record for each request to the kernel. Nil means silence.
	Logger *slog.Logger
}

// Errors that callers act on. They are found with [errors.Is].
var (
	// ErrConflict: others kept changing the ruleset while it was read. The call that returns it has
	// deleted nothing. It is the one of package dataplane.
	ErrConflict = refusal.ErrConflict
	// ErrNoPermission: the process may not do this. It is the one of package dataplane, and matches
	// fs.ErrPermission.
	ErrNoPermission = refusal.ErrNoPermission
	// ErrLegacy: the legacy tables of iptables, which are not those of nf_tables, have chains of
	// kube-proxy. They were left. "kube-proxy --cleanup" or iptables-legacy delete them.
	ErrLegacy = errors.New("legacy tables of iptables have chains of kube-proxy")
)

// Find returns what [Cleanup] would delete now, and changes nothing. It needs CAP_NET_ADMIN, for
// IPVS in the initial user namespace, and CAP_SYS_ADMIN to enter another network namespace. While
// others change the ruleset it reads again, as [Cleanup] does.
//
// To answer, the kernel may load the modules nf_tables, ip_set and nfnetlink_acct. It does not load
// IPVS: without the module there are no virtual servers.
func Find(ctx context.Context, cfg *Config) (*Plan, error) {
	k, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("look for kube-proxy: %w", refusal.Permission(err))
	}
	defer k.close()
	p, err := k.find(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for kube-proxy: %w", refusal.Permission(err))
	}
	return p, nil
}

// Cleanup deletes what kube-proxy left in the kernel, and nothing else. It returns what it has
// deleted, also with an error. Where there is nothing to delete it does nothing, so that it can be
// repeated after any error and at any time. It needs what [Find] needs.
//
// Rules, chains and tables of nf_tables go in one transaction, which the kernel refuses if anybody
// has changed the ruleset since it was read: then it is read again, up to 20 times, which ends with
// [ErrConflict]. Virtual servers, the device, IP sets and counters follow one by one. The sets come
// after the virtual servers, since they tell which of these are kube-proxy's; so does the device,
// and both stay if a virtual server does. Errors name the object; others are deleted nevertheless.
// Where legacy tables have chains of kube-proxy, the
// error is an [ErrLegacy].
func Cleanup(ctx context.Context, cfg *Config) (*Plan, error) {
	k, err := open(cfg)
	if err != nil {
		return &Plan{}, fmt.Errorf("clean up after kube-proxy: %w", refusal.Permission(err))
	}
	defer k.close()
	done, err := k.cleanup(ctx)
	if err != nil {
		return done, fmt.Errorf("clean up after kube-proxy: %w", refusal.Permission(err))
	}
	return done, nil
}
