package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// Config tunes a [Source]. A nil *Config is the zero Config.
type Config struct {
	// Tracker has the settings that do not come from Kubernetes: the node's name, which selects the
	// Node object, and the detection of local pods. Without a name, no Node is watched.
	Tracker kube.Config

	// NodeTimeout is the time that the source waits for the Node object to have addresses before it
	// produces its first state, unless Tracker has addresses. After that, the state lacks
	// addresses. If Tracker.NodeCIDRs is set, the object must also have pod CIDRs: if it has none
	// after ten times NodeTimeout, Run fails with [ErrNoNode]. Zero means 30 s, as in kube-proxy.
	NodeTimeout time.Duration

	// Resync is the interval at which the source processes all known objects again. This has no
	// effect unless an event was lost. Zero means never; kube-proxy's default (configSyncPeriod) is
	// 15 minutes.
	Resync time.Duration

	// Logger gets a record when a kind cannot be listed or watched, when this works again, when the
	// source waits for the Node object before its first state, and for each object with a problem.
	// Nil disables logging.
	Logger *slog.Logger
}

// ErrNoNode says that the Node object, or its pod CIDRs, did not appear in time.
var ErrNoNode = errors.New("node not known")

// Source watches the objects of a Kubernetes API server. [New] creates a Source. Its methods are
// safe for concurrent use, but Run may be called only once.
type Source struct {
	cfg     Config
	log     *slog.Logger
	tracker *kube.Tracker
	kinds   []*kind
	// changed has an element if an object was added, changed or removed since the last state.
	changed chan struct{}
	node    *nodeGate

	mu      sync.Mutex
	started bool
	synced  bool
}

// New returns a source that reads from the client. It asks the server whether it has ServiceCIDRs.
// [Source.Run] sends all other requests.
func New(client kubernetes.Interface, cfg *Config) (*Source, error) {
	if client == nil {
		return nil, errors.New("kubeapi: client: nil")
	}
	s := &Source{log: slog.New(slog.DiscardHandler), changed: make(chan struct{}, 1)}
	if cfg != nil {
		s.cfg = *cfg
	}
	if s.cfg.NodeTimeout == 0 {
		s.cfg.NodeTimeout = 30 * time.Second
	}
	if s.cfg.Logger != nil {
		s.log = s.cfg.Logger
	}
	s.tracker = kube.NewTracker(&s.cfg.Tracker)
	s.node = newNodeGate(&s.cfg.Tracker)
	kinds, err := s.kindsOf(client)
	if err != nil {
		return nil, fmt.Errorf("kubeapi: %w", err)
	}
	for _, k := range kinds {
		if err := s.start(k); err != nil {
			return nil, fmt.Errorf("kubeapi: %s: %w", k.name, err)
		}
	}

	s.kinds = kinds
	return s, nil
}

// Run watches the objects. It calls set on the caller's goroutine: with a first state once all
// objects are known, and with a new state after each change. Changes that arrive while set runs are
// combined into one state, so set should return at once, as Engine.Set does. Run returns nil when
// ctx is done, after its goroutines have ended, and [ErrNoNode] as described at
// [Config.NodeTimeout].
func (s *Source) Run(ctx context.Context, set func(servicemodel.State)) error {
	s.mu.Lock()
	started := s.started
	s.started = true
	s.mu.Unlock()
	if started {
		return errors.New("kubeapi: Run was called before")
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, k := range s.kinds {
		wg.Go(func() { k.informer.RunWithContext(ctx) })
	}
	if err := s.sync(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	s.touch()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
			set(s.tracker.State())
		}
	}
}

// optionalTimeout is the time that the first state waits for optional objects.
const optionalTimeout = 2 * time.Second

// sync waits until everything is known, or ctx is done.
func (s *Source) sync(ctx context.Context) error {
	var needed, optional []cache.DoneChecker
	for _, k := range s.kinds {
		if k.optional {
			optional = append(optional, k.handlers.HasSyncedChecker())
		} else {
			needed = append(needed, k.handlers.HasSyncedChecker())
		}
	}

	if !cache.WaitFor(ctx, "", needed...) {
		return nil
	}
	soon, cancel := context.WithTimeout(ctx, optionalTimeout)
	defer cancel()
	if !cache.WaitFor(soon, "", optional...) && ctx.Err() == nil {
		s.log.WarnContext(ctx, "goes on without ServiceCIDRs until they are listed")
	}
	if err := s.node.wait(ctx, s.cfg.NodeTimeout, s.log); err != nil {
		if s.cfg.Tracker.NodeCIDRs {
			return err
		}
		s.log.WarnContext(ctx, "goes on without the node", logkey.Reason, err)
	}

	s.mu.Lock()
	s.synced = true
	s.mu.Unlock()
	return nil
}

// touch records that an object changed.
func (s *Source) touch() {
	select {
	case s.changed <- struct{}{}:
	default: // Run has not received the last change yet, and will handle both at once
	}
}

// State returns the state that the known objects describe. The state is incomplete until
// [Status.Synced] is set.
func (s *Source) State() servicemodel.State { return s.tracker.State() }

// Problems returns the problems of the known objects, see [kube.Tracker.Problems].
func (s *Source) Problems() []kube.Problem { return s.tracker.Problems() }

// Triggers returns the times of the changes in the newest states, if [Config.Tracker] collects
// them; see [kube.Tracker.Triggers].
func (s *Source) Triggers() []time.Time { return s.tracker.Triggers() }

// NodeEligible reports whether load balancers may send new connections to this node, as in
// kube-proxy's /healthz: its Node object is known, is not being deleted, and does not have the
// taint ToBeDeletedByClusterAutoscaler. See package dataplane/health.
func (s *Source) NodeEligible() bool { return s.node.eligible.Load() }

// Status is the status of a source.
type Status struct {
	// Synced says that the source has listed everything, except perhaps ServiceCIDRs, and produces
	// states.
	Synced bool
	// Kinds has one element for each watched kind, in a fixed order.
	Kinds []KindStatus
}

// KindStatus describes the watch of one kind.
type KindStatus struct {
	// Kind is its name, such as "Service".
	Kind string
	// Listed says that all objects were listed once.
	Listed bool
	// Err is the last failure of listing or watching; nil while the watch works. The source keeps
	// the known objects during a failure. If the server answered, Err wraps a *StatusError of
	// k8s.io/apimachinery/pkg/api/errors.
	Err error
	// Since is the time of the first failure after the watch last worked.
	Since time.Time
}

// Status returns the status of the source.
func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Synced: s.synced}
	for _, k := range s.kinds {
		st.Kinds = append(st.Kinds, KindStatus{Kind: k.name, Listed: k.handlers.HasSynced(),
			Err: k.err, Since: k.since})
	}

	return st
}
