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

	"k8s.io/client-go/kubernetes"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/flows"
	"github.com/kernlb/kernlb/conntrack/tuning"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube/kubeapi"
)

// proxy is a node proxy that runs.
type proxy struct {
	*settings
	config *config // for /configz
	log    *slog.Logger
	client kubernetes.Interface
	events *recorder

	source  atomic.Pointer[kubeapi.Source] // nil until the API server answered once
	engine  *dataplane.Engine
	metrics *metrics.Collector
	health  *health.Proxy
	ports   *health.NodePorts
	applied chan struct{} // closed by the first apply that succeeded

	inItsPlace atomic.Bool // this program listens where kube-proxy has its metrics
}

// run proxies until the context ends, which is no error. What is in the kernel stays.
func run(ctx context.Context, o *options, client kubernetes.Interface, log *slog.Logger) error {
	p := &proxy{settings: o.settings, config: o.config, log: log, client: client,
		applied: make(chan struct{})}
	p.setOOMScore()
	table, err := p.tuned(ctx, log)
	if err != nil {
		return err
	}
	defer table.Close()
	backend, err := p.open(p.mode, log)
	if err != nil {
		return fmt.Errorf("mode %s: %w", p.mode, err)
	}
	defer backend.Close()
	keeper, err := flows.New(table, &flows.Config{Logger: log})
	if err != nil {
		return err
	}
	p.engine = dataplane.New(backend, &dataplane.Config{Logger: log, Flows: keeper})
	p.metrics = metrics.New(p.engine, &metrics.Config{Flows: keeper, Conntrack: table})
	defer p.metrics.Close()
	p.health = health.NewProxy(p.engine, &health.ProxyConfig{Timeout: 2 * p.syncPeriod,
		Eligible: func() bool {
			source := p.source.Load()
			return source != nil && source.NodeEligible()
		}})
	p.ports = health.NewNodePorts(&health.NodePortsConfig{Healthy: p.health.Healthy})
	defer p.ports.Close()
	p.events = newRecorder(ctx, client, p.tracker.Node.Name)
	defer p.events.close()
	defer p.engine.Subscribe(p.observe)()
	p.events.node("Normal", "Starting", "StartKubeProxy", "kernlb proxies in mode "+string(p.mode))
	return together(ctx, p.serveHealth, p.serveMetrics, o.watchFile,
		p.apply, p.takeOver, p.follow)
}

// tuned opens the conntrack table and gives it the settings that are asked for.
func (s *settings) tuned(ctx context.Context, log *slog.Logger) (*conntrack.Table, error) {
	table, err := conntrack.Open(&conntrack.Config{Logger: log})
	if err != nil {
		return nil, err
	}
	plan, err := tuning.NewPlan(ctx, table, &s.conntrack)
	if err == nil {
		err = plan.Apply(table)
	}
	if errors.Is(err, tuning.ErrGlobalSetting) {
		log.Warn("conntrack settings of the whole machine are left", "err", err)
		err = nil
	}
	if err != nil {
		table.Close()
		return nil, fmt.Errorf("conntrack settings: %w", err)
	}
	return table, nil
}

// setOOMScore makes the kernel end other processes first, if it may.
func (p *proxy) setOOMScore() {
	err := os.WriteFile("/proc/self/oom_score_adj",
		strconv.AppendInt(nil, int64(p.oomScoreAdj), 10), 0o644)
	if err != nil {
		p.log.Warn("oomScoreAdj is not set", "err", err)
	}
}

// follow gives the engine what the API server has, from when all of it is known. While no API
// server has answered yet, it asks again.
func (p *proxy) follow(ctx context.Context) error {
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		source, err := kubeapi.New(p.client, &kubeapi.Config{Tracker: p.tracker,
			Resync: p.resync, Logger: p.log})
		if err == nil {
			p.source.Store(source)
			return source.Run(ctx, func(s servicemodel.State) {
				p.metrics.Triggered(p.engine.Set(p.withAddress(s)), source.Triggers()...)
			})
		}
		p.log.Warn("the API server is asked again", "err", err, "after", wait)
		if !pause(ctx, wait) {
			return nil
		}
	}
}

// observe follows what the engine does. It is called by one goroutine at a time.
func (p *proxy) observe(ctx context.Context, ev dataplane.Event) {
	switch ev := ev.(type) {
	case dataplane.Refused:
		p.events.service(ev.Service, "NotProxied", "Sync", ev.Err.Error())
	case dataplane.ClaimConflict:
		p.events.service(ev.Loser.Name, "AddressTaken", "Sync", ev.String())
	case dataplane.Applied:
		err := p.ports.Sync(ctx, ev.Changes.New)
		for _, e := range listenErrors(err) {
			p.events.service(e.Service, "FailedToStartServiceHealthcheck", "Listen", e.Error())
		}
		if err != nil {
			p.log.Warn("health check node ports", "err", err)
		}
		select {
		case <-p.applied:
		default:
			close(p.applied)
		}
	}
}

// listenErrors returns those that an error joins.
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

// together runs functions until all have returned. The first that returns an error ends the others;
// one that returns nil does not.
func together(ctx context.Context, functions ...func(context.Context) error) error {
	outer := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	for _, f := range functions {
		go func() {
			if err := f(ctx); err != nil {
				cancel(err)
			}
			done <- struct{}{}
		}()
	}
	for range functions {
		<-done
	}
	if outer.Err() != nil {
		return nil // it was asked to stop
	}
	return context.Cause(ctx)
}
