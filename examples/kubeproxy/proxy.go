package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/tuning"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/metrics"
	nodechecks "github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/examples/command/accepted"
	"github.com/kernlb/kernlb/examples/command/feedback"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube/kubeapi"
)

// proxy is a running node proxy.
type proxy struct {
	*settings
	config *config // for /configz
	log    *slog.Logger
	client kubernetes.Interface
	events *recorder

	source  atomic.Pointer[kubeapi.Source] // nil until the API server's first answer
	engine  *dataplane.Engine
	give    func(servicemodel.State) // takes states on their way to the engine
	silent  *feedback.Follower       // nil if no endpoint is taken out
	metrics *metrics.Collector
	health  *health.Proxy
	ports   *health.NodePorts
	applied chan struct{} // closed by the first successful apply

	// inItsPlace ends the server at kube-proxy's address of metrics. It is nil if there is no
	// server.
	inItsPlace atomic.Pointer[context.CancelFunc]
}

// run runs the proxy, and returns nil when the context ends. The kernel keeps the services.
func run(ctx context.Context, o *options, client kubernetes.Interface, log *slog.Logger) error {
	p := &proxy{settings: o.settings, config: o.config, log: log, client: client,
		applied: make(chan struct{})}
	var keeper dataplane.Flows
	var tracking metrics.Config
	var untuned error
	if p.mode != modeKernel { // where HNS keeps its flows to itself
		p.setOOMScore()
		table, problem, err := p.tuned(ctx, log)
		if err != nil {
			return err
		}
		defer table.Close()
		k, err := flows.New(table, &flows.Config{Logger: log})
		if err != nil {
			return err
		}
		keeper, untuned = k, problem
		tracking = metrics.Config{Flows: k, Conntrack: table}
	}

	backend, err := p.open(p.mode, log)
	if err != nil {
		return fmt.Errorf("mode %s: %w", p.mode, err)
	}
	defer backend.Close()
	kept := accepted.Open("kubeproxy", log)
	p.engine = dataplane.New(backend, &dataplane.Config{Logger: log, Flows: keeper,
		KeepRefused: true, Accepted: kept.Load()})
	p.give = func(s servicemodel.State) { p.engine.Set(s) }
	if p.mode != modeKernel && (p.ejects || p.tracker.Annotations != "") {
		if p.silent, err = feedback.New(p.engine, p.ejects,
			accepted.Path("kubeproxy-silent.json"), log); err != nil {
			return err
		}
		defer p.silent.Close()
		p.give, tracking.Silent = p.silent.Set, p.silent.Silent
	}

	tracking.Problems = p.problems
	checker := nodechecks.NewChecker(&nodechecks.Config{
		Undone: func() string { return p.engine.Status().Undone.String() }})
	tracking.Node = checker.Report
	p.metrics = metrics.New(p.engine, &tracking)
	defer p.metrics.Close()
	p.health = health.NewProxy(p.engine, &health.ProxyConfig{Timeout: 2 * p.run.RetryMax,
		Problems: p.problems, Node: checker.Report, Silent: tracking.Silent,
		Eligible: func() bool {
			source := p.source.Load()
			return source != nil && source.NodeEligible()
		}})
	p.ports = health.NewNodePorts(&health.NodePortsConfig{Healthy: p.health.Healthy})
	defer p.ports.Close()
	p.events = newRecorder(ctx, client, p.tracker.Node.Name)
	defer p.events.close()

	// before observe, which reports that everything is applied
	defer p.ports.Follow(p.engine, p.portsFailed)()
	defer p.engine.Subscribe(p.observe)()
	defer p.engine.Subscribe(kept.Observe)()
	p.events.node("Normal", "Starting", "StartKubeProxy", "kernlb proxies in mode "+string(p.mode))
	if untuned != nil { // --init-only sets them; services need not wait
		log.Warn("conntrack settings are left as they are", "err", untuned)
		p.events.node("Warning", "ConntrackNotTuned", "StartKubeProxy", untuned.Error())
	}

	err = together(ctx, p.serveHealth, p.serveMetrics, o.watchFile, p.apply, p.takeOver, p.follow,
		p.eject, kept.Run)
	if err == nil {
		log.Info("stopped; the kernel stays as it is")
	}
	return err
}

// tuned opens the conntrack table and writes the configured settings. untuned names the settings
// that could not be written.
func (s *settings) tuned(ctx context.Context, log *slog.Logger) (table *conntrack.Table,
	untuned, err error) {
	table, err = conntrack.Open(&conntrack.Config{Logger: log})
	if err != nil {
		return nil, nil, err
	}
	plan, err := tuning.NewPlan(ctx, table, &s.conntrack)
	if err != nil {
		table.Close()
		return nil, nil, fmt.Errorf("conntrack settings: %w", err)
	}

	return table, plan.Apply(table), nil
}

// eject removes silent endpoints from states, if the configuration or a service asks for it.
func (p *proxy) eject(ctx context.Context) error {
	if p.silent == nil {
		return nil
	}
	return feedback.Run(ctx, p.silent, p.log)
}

// setOOMScore makes the kernel kill other processes first, if this is permitted.
func (p *proxy) setOOMScore() {
	err := os.WriteFile("/proc/self/oom_score_adj",
		strconv.AppendInt(nil, int64(p.oomScoreAdj), 10), 0o644)
	if err != nil {
		p.log.Warn("oomScoreAdj is not set", "err", err)
	}
}

// follow gives states to the engine, once all objects of the API server are known. Until the API
// server answers for the first time, it retries.
func (p *proxy) follow(ctx context.Context) error {
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		source, err := kubeapi.New(p.client, &kubeapi.Config{Tracker: p.tracker,
			Resync: p.resync, Logger: p.log})
		if err == nil {
			p.source.Store(source)
			if p.mode != modeKernel { // it is told nothing of kube-proxy's there
				p.tellNotes(ctx)
			}
			said := false
			return source.Run(ctx, func(s servicemodel.State) {
				n := s.Node()
				s = p.withAddress(s)
				if n.NodePortAddresses.Primary && !s.Node().NodePortAddresses.Primary && !said {
					said = true
					p.log.Warn("node ports answer at all addresses of this node until a Node "+
						"with its name has an address", "name", n.Name)
				}
				p.give(s)
				p.metrics.Triggered(p.engine.Status().Wanted, source.Triggers()...)
			})
		}

		p.log.Warn("the API server is asked again", "err", err, "after", wait)
		if !pause(ctx, wait) {
			return nil
		}
	}
}

// problems returns the reasons why the program cannot read, or use, objects of the API server.
func (p *proxy) problems() (l []string) {
	source := p.source.Load()
	if source == nil {
		return []string{"the API server has not answered yet, so the node is not eligible"}
	}
	for _, k := range source.Status().Kinds {
		if k.Err != nil {
			l = append(l, fmt.Sprintf("watch %s: %v", k.Kind, k.Err))
		}
	}

	for _, problem := range source.Problems() {
		if !problem.Warning {
			l = append(l, problem.Error())
		}
	}

	return l
}

// observe handles events of the engine. Only one goroutine at a time calls it.
func (p *proxy) observe(_ context.Context, ev dataplane.Event) {
	switch ev := ev.(type) {
	case dataplane.Refused:
		if ev.Family != 0 {
			p.events.node("Warning", "NotProxied", "Sync", ev.String())
			return
		}

		p.events.service(ev.Service, "NotProxied", "Sync", ev.Err.Error())
	case dataplane.ClaimConflict:
		p.events.service(ev.Loser.Name, "AddressTaken", "Sync", ev.String())
	case dataplane.Applied:
		select {
		case <-p.applied:
		default:
			close(p.applied)
		}
	}
}

// portsFailed handles an error of the health check node ports.
func (p *proxy) portsFailed(err error) {
	for _, e := range listenErrors(err) {
		p.events.service(e.Service, "FailedToStartServiceHealthcheck", "Listen", e.Error())
	}
	p.log.Warn("health check node ports", "err", err)
}

// listenErrors returns the ListenErrors that an error joins.
func listenErrors(err error) (out []*health.ListenError) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			out = append(out, listenErrors(e)...)
		}
		return out
	}

	if e := (*health.ListenError)(nil); errors.As(err, &e) {
		out = append(out, e)
	}
	return out
}

// together runs functions until all have returned. The first error ends the other functions. A nil
// result does not.
func together(ctx context.Context, functions ...func(context.Context) error) error {
	g, inner := errgroup.WithContext(ctx)
	for _, f := range functions {
		g.Go(func() error { return f(inner) })
	}
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return nil // it was asked to stop
}

// reporter is the reporting controller of the events.
const reporter = "kernlb-kubeproxy"

// longestNote is the API's limit for the note of an event.
const longestNote = 1024

// recorder creates Events in a separate goroutine. close ends it.
type recorder struct {
	broadcaster events.EventBroadcaster
	events.EventRecorder
	nodeName string
}

func newRecorder(ctx context.Context, client kubernetes.Interface, node string) *recorder {
	b := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	r := &recorder{broadcaster: b, EventRecorder: b.NewRecorder(scheme.Scheme, reporter),
		nodeName: node}
	_ = b.StartRecordingToSinkWithContext(ctx) // fails only if the broadcaster was shut down
	return r
}

func (r *recorder) close() { r.broadcaster.Shutdown() }

// node creates an event about the node.
func (r *recorder) node(kind, reason, action, note string) {
	r.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.nodeName,
		UID: types.UID(r.nodeName)}, nil, kind, reason, action, "%.*s", longestNote, note)
}

// service creates a warning event about a service.
func (r *recorder) service(n servicemodel.Name, reason, action, note string) {
	r.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: n.Namespace,
		Name: n.Name, UID: types.UID(n.String())}, nil, corev1.EventTypeWarning, reason, action,
		"%.*s", longestNote, note)
}
