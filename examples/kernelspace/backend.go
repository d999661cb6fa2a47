package kernelspace

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/servicemodel"
)

// Name is the backend's name.
const Name = "kernelspace"

// Config configures a [Backend]. Fields that winkernel also has are named as in
// KubeProxyWinkernelConfiguration.
type Config struct {
	// HNS is the Host Networking Service. Nil means this host's ([Host]).
	HNS HNS
	// Store keeps the record of the instance. Required.
	Store Store
	// Instance distinguishes instances on one node. It begins the names of remote endpoints. Empty
	// means "kernlb".
	Instance string
	// Network is the name of the HNS network, which the CNI plugin creates. Empty means the value
	// of the environment variable KUBE_NETWORK, as in kube-proxy.
	Network string
	// SourceVIP is the source of packets to endpoints, on overlay networks. Required there.
	SourceVIP netip.Addr
	// NodeIPs are addresses of the node, at most one of each family, and HostMAC is the link-layer
	// address of the first one's interface ([HostMAC]). Both are required on overlay networks.
	NodeIPs []netip.Addr
	HostMAC string
	// EnableDSR lets endpoints of cluster IPs answer clients directly.
	EnableDSR bool
	// ForwardHealthCheckVIP forwards health checks at the addresses of load balancers to the
	// endpoint RootEndpoint, at the health check node port of the service or else at HealthzPort.
	ForwardHealthCheckVIP bool
	RootEndpoint          string
	HealthzPort           uint16
	// TakeOver lets the backend replace load balancers of other programs at places that it needs,
	// such as kube-proxy's, or its own after it lost its record. HNS can have only one load
	// balancer at each place. Without TakeOver, such load balancers are collisions.
	TakeOver bool
	// Logger gets a record of each missing endpoint. Nil discards the records.
	Logger *slog.Logger
}

// Backend keeps the services of one instance in HNS. See [backends.Backend] for its methods.
//
// HNS has no transactions: a commit is a call for each object. After an error, or the end of the
// process, some of the calls have had their effect; the next reading finds out which. Only one
// process at a time may write an instance.
type Backend struct {
	hns      HNS
	cfg      Config // with its defaults
	features Features

	mu     sync.Mutex
	closed bool
	held   *held               // nil: nothing was observed since the start or the last error
	waits  map[netip.Addr]bool // endpoints of this node that the last commit missed
}

// held is the knowledge from an observation or a commit.
type held struct {
	raw    []byte // the record
	table  *servicemodel.Table
	view   *view
	placed map[servicemodel.FrontendKey]placed
	// foreign are the identities of other programs' load balancers.
	foreign map[servicemodel.FrontendKey]string
	// seen has the identities, in lower case, of all load balancers that existed or were created.
	seen  map[string]bool
	extra []string            // identities of load balancers to delete that are at no place
	needs map[netip.Addr]bool // the addresses whose endpoints load balancers need
}

var _ backends.Backend = (*Backend)(nil)

// New opens the backend.
func New(cfg *Config) (*Backend, error) {
	c := *cfg
	c.Instance = cmp.Or(c.Instance, "kernlb")
	c.Network = cmp.Or(c.Network, os.Getenv("KUBE_NETWORK"))
	switch {
	case c.Network == "":
		return nil, fmt.Errorf("%s: Config.Network is empty, and KUBE_NETWORK is not set", Name)
	case c.Store == nil:
		return nil, fmt.Errorf("%s: Config.Store is nil", Name)
	case c.ForwardHealthCheckVIP && c.RootEndpoint == "":
		return nil, fmt.Errorf("%s: Config.RootEndpoint is empty, and ForwardHealthCheckVIP is set",
			Name)
	}

	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.HNS == nil {
		h, err := Host()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", Name, err)
		}
		c.HNS = h
	}

	f, err := c.HNS.Features()
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: ask HNS for its features: %w", Name, err)
	case !f.V2:
		return nil, fmt.Errorf("%s: HNS has no API 2: %w", Name, kernelerr.ErrKernelTooOld)
	case c.EnableDSR && !f.DSR:
		return nil, fmt.Errorf("%s: Config.EnableDSR: HNS lacks DSR: %w", Name,
			kernelerr.ErrKernelTooOld)
	}

	return &Backend{hns: c.HNS, cfg: c, features: f}, nil
}

// Candidate returns the backend for [dataplane.Choose].
func Candidate(cfg *Config) backends.Candidate {
	return backends.Candidate{Name: Name,
		Open: func() (backends.Backend, error) { return New(cfg) }}
}

// Name returns [Name].
func (b *Backend) Name() string { return Name }

// prefix begins the names of our endpoints.
func (b *Backend) prefix() string { return b.cfg.Instance + "-" }

// enter locks the backend, unless it is closed or the context has ended.
func (b *Backend) enter(ctx context.Context, doing string) error {
	b.mu.Lock()
	err := context.Cause(ctx)
	if b.closed {
		err = kernelerr.ErrClosed
	}
	if err != nil {
		b.mu.Unlock()
		return fmt.Errorf("%s: %s: %w", Name, doing, err)
	}

	return nil
}

// Check is the function [Check] for the features of this node. It also reports load balancers of
// other programs at places of services, as of the last observation, unless [Config.TakeOver] is
// set.
func (b *Backend) Check(c *servicemodel.ChangeSet) error {
	if err := b.enter(context.Background(), "check"); err != nil {
		return err
	}
	defer b.mu.Unlock()
	errs := []error{Check(c, b.features)}
	if b.held == nil || b.cfg.TakeOver {
		return errs[0]
	}
	for _, fc := range c.Frontends {
		if fc.New == nil {
			continue
		}
		if _, there := b.held.foreign[fc.New.Key]; there {
			errs = append(errs, &backends.CollisionError{Backend: Name,
				Service: fc.New.Service.Name, Object: "load balancer " + fc.New.Key.String()})
		}
	}

	return errors.Join(errs...)
}

// Integrity asks for the identities of all load balancers and endpoints: two calls. It lists the
// endpoints of the network only if endpoints were added or removed. A new load balancer of another
// program counts as Touched. Integrity does not notice that another program changed a load balancer
// in place; [Backend.Observe] does.
func (b *Backend) Integrity(ctx context.Context) (backends.Integrity, error) {
	if err := b.enter(ctx, "integrity"); err != nil {
		return backends.Broken, err
	}
	defer b.mu.Unlock()
	h := b.held
	if h == nil {
		return backends.Broken, nil
	}
	raw, err := b.cfg.Store.Load()
	if err != nil {
		return backends.Broken, fmt.Errorf("%s: load the record: %w", Name, err)
	}
	eps, lbs, err := b.hns.IDs()
	if err != nil {
		return backends.Broken, fmt.Errorf("%s: list identities: %w", Name, err)
	}
	there := map[string]bool{}
	for _, id := range lbs {
		there[lower(id)] = true
	}
	for _, p := range h.placed {
		if p.ID != "" && !there[lower(p.ID)] {
			return backends.Broken, nil
		}
	}

	if !bytes.Equal(raw, h.raw) {
		return backends.Broken, nil
	}
	if moved, err := b.moved(eps); err != nil || moved {
		return backends.Broken, err
	}
	for id := range there {
		if !h.seen[id] { // it may be where one of ours must be
			return backends.Touched, nil
		}
	}

	return backends.Intact, nil
}

// moved reports whether an endpoint that we use, or wait for, was added, removed or replaced.
func (b *Backend) moved(ids []string) (bool, error) {
	h := b.held
	same := len(ids) == len(h.view.known)
	for _, id := range ids {
		same = same && h.view.known[lower(id)]
	}
	if same {
		return false, nil
	}
	v, err := b.look(ids)
	if err != nil {
		return true, err
	}
	for a := range h.needs {
		was, is := h.view.byAddr[a], v.byAddr[a]
		if (was == nil) != (is == nil) || was != nil && lower(was.ID) != lower(is.ID) {
			return true, nil
		}
	}

	h.view = v
	return false, nil
}

// Close makes all later calls fail.
func (b *Backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}
