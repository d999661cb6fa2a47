package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/kubeproxy"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
)

// chainPrefix begins the names of chains in iptables mode. It is not kube-proxy's prefix. So each
// of the two programs can start while the other's rules are in place, and a cleanup of one does not
// touch the rules of the other.
const chainPrefix = "KERNLB"

// open opens the backend of a mode.
func (s *settings) open(mode v1alpha1.ProxyMode, log *slog.Logger) (backends.Backend, error) {
	switch mode {
	case modeIPTables:
		return iptables.New(&iptables.Config{Prefix: chainPrefix, Logger: log})
	case modeKernel:
		return s.openKernel(log)
	case modeIPVS:
		c := s.ipvs
		c.Logger, c.TakeOver = log, true // two virtual servers cannot be at one address
		return ipvs.New(&c)
	}

	return nftables.New(&nftables.Config{Logger: log})
}

const (
	// askAgain is the interval between checks whether a kube-proxy is still running.
	askAgain = time.Second
	// lookAgain is the interval between searches for objects of a kube-proxy that came back. It
	// doubles, up to lookSeldom, after objects for which no kube-proxy answers.
	lookAgain, lookSeldom = 5 * time.Second, time.Minute
	// giveWay is the time for which this program leaves the address of its metrics to a kube-proxy
	// that came back. kube-proxy tries to listen there every 5 seconds.
	giveWay = 7 * time.Second
)

// otherRuns returns the mode of the kube-proxy that runs on the node, or "".
func (p *proxy) otherRuns(ctx context.Context) v1alpha1.ProxyMode {
	mode, err := kubeproxy.Running(ctx, nil)
	if err != nil {
		return ""
	}
	return v1alpha1.ProxyMode(mode)
}

// apply programs the services into the kernel, even while kube-proxy runs. Only in ipvs mode does
// it wait until a kube-proxy in that mode has ended, because an address can have only one virtual
// server.
func (p *proxy) apply(ctx context.Context) error {
	for said := false; p.mode == modeIPVS && p.otherRuns(ctx) == modeIPVS; said = true {
		if !said {
			p.beside(corev1.EventTypeNormal, "kube-proxy runs on this node in the mode ipvs: its "+
				"virtual servers are taken over when it has ended")
		}

		if !pause(ctx, askAgain) {
			return nil
		}
	}

	return p.engine.Run(ctx, &p.run)
}

// beside reports a running kube-proxy with an event, Normal or Warning.
func (p *proxy) beside(kind, note string) {
	if kind == corev1.EventTypeWarning {
		p.log.Warn(note)
	} else {
		p.log.Info(note)
	}

	p.events.node(kind, "KubeProxyRuns", "TakeOver", note)
}

// takeOver deletes the kernel objects of kube-proxy, and of this program in other modes. It waits
// until the kernel holds all services of this program, and kube-proxy has ended. Whenever a
// kube-proxy comes back, it also waits for its end.
func (p *proxy) takeOver(ctx context.Context) error {
	if p.mode == modeKernel {
		return nil // its load balancers were taken over one by one
	}
	select {
	case <-ctx.Done():
		return nil
	case <-p.applied:
	}

	p.removeOthers(ctx)
	p.ends(ctx, corev1.EventTypeNormal, "all services are in the kernel beside those of the "+
		"kube-proxy that runs on this node: it can be stopped, and then its rules are deleted")
	for wait := lookAgain; ; {
		plan, err := kubeproxy.Cleanup(ctx, &kubeproxy.Config{Logger: p.log})
		if ctx.Err() != nil {
			return nil
		}
		p.tookOver(plan, err)
		if !p.comesBack(ctx, wait) {
			return nil
		}
		if p.ends(ctx, corev1.EventTypeWarning, "kube-proxy runs on this node again: its rules "+
			"are left alone, and are deleted when it has ended") {
			wait = lookAgain
			continue
		}

		wait = min(2*wait, lookSeldom)
		p.beside(corev1.EventTypeWarning, "kube-proxy's rules are in the kernel again, and no "+
			"kube-proxy answers at port 10249: they are deleted")
	}
}

// ends waits until no kube-proxy runs. It returns whether one ran, after an event with the note.
func (p *proxy) ends(ctx context.Context, kind, note string) (ran bool) {
	for ; p.otherRuns(ctx) != ""; ran = true {
		if !ran {
			p.beside(kind, note)
		}
		if !pause(ctx, askAgain) {
			return true
		}
	}

	return ran
}

// comesBack waits until the kernel has objects of a kube-proxy again. Sets and counters do not
// count, because rules of other programs may hold them. comesBack then leaves the address of the
// metrics, because a kube-proxy can be asked whether it runs only if it listens there. It returns
// false if the context ends.
func (p *proxy) comesBack(ctx context.Context, every time.Duration) bool {
	for pause(ctx, every) {
		plan, err := kubeproxy.Find(ctx, nil)
		if err != nil && ctx.Err() == nil {
			p.log.Warn("not known whether kube-proxy came back", "err", err)
		}
		if err != nil || len(plan.Chains)+len(plan.Tables)+len(plan.VirtualServers) == 0 {
			continue
		}
		leave := p.inItsPlace.Load()
		if leave == nil {
			return true
		}
		(*leave)()
		for range int(giveWay / askAgain) {
			if !pause(ctx, askAgain) {
				return false
			}
			if p.otherRuns(ctx) != "" {
				break
			}
		}

		return true
	}

	return false
}

// tookOver reports the deleted objects of kube-proxy.
func (p *proxy) tookOver(plan *kubeproxy.Plan, err error) {
	if err != nil {
		p.log.Warn("kube-proxy's objects are still there", "err", err)
	}
	if plan == nil || plan.Empty() {
		return
	}
	p.log.Info("took over from kube-proxy", "rules", len(plan.Rules), "chains", len(plan.Chains),
		"tables", len(plan.Tables), "virtual servers", len(plan.VirtualServers))
	p.events.node(corev1.EventTypeNormal, "TookOver", "TakeOver",
		"what kube-proxy had in the kernel was deleted")
}

// removeOthers deletes the program's own objects of other modes.
func (p *proxy) removeOthers(ctx context.Context) {
	for _, mode := range modes() {
		if mode == p.mode {
			continue
		}
		if err := p.remove(ctx, mode, p.log); err != nil && ctx.Err() == nil {
			p.log.Warn("what another mode left is still there", "mode", mode, "err", err)
		}
	}
}

// remove deletes the program's objects of a mode from the kernel.
func (s *settings) remove(ctx context.Context, mode v1alpha1.ProxyMode, log *slog.Logger) error {
	if mode == modeIPVS && !haveIPVS() {
		return nil
	}
	b, err := s.open(mode, log)
	if errors.Is(err, kernelerr.ErrMissingModule) || errors.Is(err, kernelerr.ErrKernelTooOld) {
		return nil // then it has no objects
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

// haveIPVS reports whether IPVS is loaded. Without it there are no virtual servers, and a request
// for them would load it.
func haveIPVS() bool {
	_, err := os.Stat("/proc/net/ip_vs")
	return !errors.Is(err, fs.ErrNotExist)
}

// cleanup deletes the program's objects of all modes from the kernel.
func (s *settings) cleanup(ctx context.Context, log *slog.Logger) error {
	var errs []error
	for _, mode := range modes() {
		errs = append(errs, s.remove(ctx, mode, log))
	}
	return errors.Join(errs...)
}

// initialize does everything that needs more than CAP_NET_ADMIN: conntrack's settings, and modules.
func (s *settings) initialize(ctx context.Context, log *slog.Logger) error {
	if s.mode == modeKernel {
		return errors.New("--init-only: on Windows there is nothing to set")
	}
	table, untuned, err := s.tuned(ctx, log)
	if err != nil {
		return err
	}
	defer table.Close()
	if untuned != nil {
		return untuned
	}
	b, err := s.open(s.mode, log)
	if err != nil {
		return fmt.Errorf("mode %s: %w", s.mode, err)
	}
	return b.Close()
}
