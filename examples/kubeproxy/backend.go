package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/kubeproxy"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
)

// chainPrefix is what the names of chains begin with in the mode iptables. They are not those of
// kube-proxy: so each of the two can be started while the other's rules are in place, in either
// direction, and be cleaned up without touching the other's.
const chainPrefix = "KERNLB"

// open opens the backend of a mode.
func (s *settings) open(mode v1alpha1.ProxyMode, log *slog.Logger) (dataplane.Backend, error) {
	switch mode {
	case modeIPTables:
		return iptables.New(&iptables.Config{Prefix: chainPrefix, Logger: log})
	case modeIPVS:
		c := s.ipvs
		c.Logger, c.TakeOver = log, true // two virtual servers cannot be at one address
		return ipvs.New(&c)
	}
	return nftables.New(&nftables.Config{Logger: log})
}

const (
	// askAgain is how often a kube-proxy that runs is asked whether it still does.
	askAgain = time.Second
	// lookAgain is after what time kube-proxy's objects are looked for again, once some were
	// deleted: one that cannot be asked, since it has its metrics elsewhere, makes them anew.
	lookAgain = time.Minute
)

// otherRuns returns the mode of the kube-proxy that runs on the node, or "".
func (p *proxy) otherRuns(ctx context.Context) v1alpha1.ProxyMode {
	mode, err := kubeproxy.Running(ctx, nil)
	if err != nil || p.inItsPlace.Load() { // which is so before this program answers there
		return ""
	}
	return v1alpha1.ProxyMode(mode)
}

// apply makes the kernel hold the services, beside a kube-proxy that runs. Only in the mode ipvs it
// waits for the end of a kube-proxy in that mode: an address has one virtual server.
func (p *proxy) apply(ctx context.Context) error {
	for said := false; p.mode == modeIPVS && p.otherRuns(ctx) == modeIPVS; said = true {
		if !said {
			p.beside("kube-proxy runs on this node in the mode ipvs: its virtual servers are " +
				"taken over when it has ended")
		}
		if !pause(ctx, askAgain) {
			return nil
		}
	}
	return p.engine.Run(ctx, &p.run)
}

// beside says that a kube-proxy runs.
func (p *proxy) beside(note string) {
	p.log.Info(note)
	p.events.node("Normal", "KubeProxyRuns", "TakeOver", note)
}

// takeOver deletes what kube-proxy, and this program in another mode, have in the kernel, once all
// services are there anew and kube-proxy has ended.
func (p *proxy) takeOver(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-p.applied:
	}
	p.removeOthers(ctx)
	for said := false; p.otherRuns(ctx) != ""; said = true {
		if !said {
			p.beside("all services are in the kernel beside those of the kube-proxy that runs " +
				"on this node: it can be stopped, and then its rules are deleted")
		}
		if !pause(ctx, askAgain) {
			return nil
		}
	}
	for first := true; ; first = false {
		plan, err := kubeproxy.Cleanup(ctx, &kubeproxy.Config{Logger: p.log})
		if ctx.Err() != nil || p.tookOver(plan, err, first) || !pause(ctx, lookAgain) {
			return nil
		}
	}
}

// tookOver says what was deleted of kube-proxy's, and returns whether there is nothing left to do.
func (p *proxy) tookOver(plan *kubeproxy.Plan, err error, first bool) bool {
	if err != nil {
		p.log.Warn("kube-proxy's objects are still there", "err", err)
	}
	if plan == nil || plan.Empty() {
		return err == nil || errors.Is(err, kubeproxy.ErrLegacy) // which only kube-proxy deletes
	}
	p.log.Info("took over from kube-proxy", "rules", len(plan.Rules), "chains", len(plan.Chains),
		"tables", len(plan.Tables), "virtual servers", len(plan.VirtualServers))
	if first {
		p.events.node("Normal", "TookOver", "TakeOver",
			"what kube-proxy had in the kernel was deleted")
		return false
	}
	p.log.Warn("kube-proxy still runs on this node, and made its rules again")
	p.events.node("Warning", "KubeProxyRuns", "TakeOver",
		"kube-proxy runs on this node, too, and makes its rules again")
	return false
}

// removeOthers deletes what the program left in other modes.
func (p *proxy) removeOthers(ctx context.Context) {
	for _, mode := range []v1alpha1.ProxyMode{modeIPTables, modeNFTables, modeIPVS} {
		if mode == p.mode {
			continue
		}
		if err := p.remove(ctx, mode, p.log); err != nil && ctx.Err() == nil {
			p.log.Warn("what another mode left is still there", "mode", mode, "err", err)
		}
	}
}

// remove deletes what the program has in the kernel in a mode.
func (s *settings) remove(ctx context.Context, mode v1alpha1.ProxyMode, log *slog.Logger) error {
	if mode == modeIPVS && !haveIPVS() {
		return nil
	}
	b, err := s.open(mode, log)
	if errors.Is(err, dataplane.ErrMissingModule) || errors.Is(err, dataplane.ErrKernelTooOld) {
		return nil // then nothing of it is there
	}
	if err != nil {
		return fmt.Errorf("mode %s: %w", mode, err)
	}
	defer b.Close()
	if _, err := dataplane.New(b, nil).Cleanup(ctx); err != nil {
		return fmt.Errorf("mode %s: %w", mode, err)
	}
	return nil
}

// haveIPVS reports whether IPVS is loaded: without it there are no virtual servers, and to ask for
// them would load it.
func haveIPVS() bool {
	_, err := os.Stat("/proc/net/ip_vs")
	return !errors.Is(err, fs.ErrNotExist)
}

// cleanup deletes what the program has in the kernel, in all modes.
func (s *settings) cleanup(ctx context.Context, log *slog.Logger) error {
	var errs []error
	for _, mode := range []v1alpha1.ProxyMode{modeIPTables, modeNFTables, modeIPVS} {
		errs = append(errs, s.remove(ctx, mode, log))
	}
	return errors.Join(errs...)
}

// initialize does what needs more than CAP_NET_ADMIN: conntrack's settings, and modules.
func (s *settings) initialize(ctx context.Context, log *slog.Logger) error {
	table, err := s.tuned(ctx, log)
	if err != nil {
		return err
	}
	defer table.Close()
	b, err := s.open(s.mode, log)
	if err != nil {
		return fmt.Errorf("mode %s: %w", s.mode, err)
	}
	return b.Close()
}
