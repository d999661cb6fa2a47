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
		c.Logger = log
		return ipvs.New(&c)
	}
	return nftables.New(&nftables.Config{Logger: log})
}

// backends are those that the program begins with, and goes on with once kube-proxy's objects are
// gone. They are the same but where kube-proxy has virtual servers of IPVS, and so shall the
// program: two cannot be at one address, so that nftables has the services in between.
type backends struct{ first, then dataplane.Backend }

// openBackends opens them.
func (p *proxy) openBackends(ctx context.Context) (*backends, error) {
	b, err := p.open(p.mode, p.log)
	if err != nil {
		return nil, fmt.Errorf("mode %s: %w", p.mode, err)
	}
	out := &backends{b, b}
	if p.mode != modeIPVS {
		return out, nil
	}
	plan, err := kubeproxy.Find(ctx, &kubeproxy.Config{Logger: p.log})
	if err == nil && len(plan.VirtualServers) > 0 {
		p.log.Info("nftables has the services until the virtual servers of kube-proxy are gone",
			"virtual servers", len(plan.VirtualServers))
		out.first, err = p.open(modeNFTables, p.log)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("what does kube-proxy have: %w", err), b.Close())
	}
	return out, nil
}

func (b *backends) close() {
	if b.first != b.then {
		_ = b.first.Close()
	}
	_ = b.then.Close()
}

// lookAgain is after what time kube-proxy's objects are looked for again, once some were deleted.
const lookAgain = time.Minute

// takeOver deletes what kube-proxy, and this program in another mode, have in the kernel, once all
// services are there anew. If kube-proxy still runs, it makes its own again: then that is said, and
// tried again.
func (p *proxy) takeOver(ctx context.Context, b *backends) error {
	select {
	case <-ctx.Done():
		return nil
	case <-p.applied:
	}
	for first := true; ; first = false {
		plan, err := kubeproxy.Cleanup(ctx, &kubeproxy.Config{Logger: p.log})
		if err != nil && ctx.Err() == nil {
			p.log.Warn("kube-proxy's objects are still there", "err", err)
		}
		if first {
			p.settleIn(ctx, b)
		}
		deleted := plan != nil && !plan.Empty()
		if deleted {
			p.log.Info("took over from kube-proxy", "rules", len(plan.Rules),
				"chains", len(plan.Chains), "tables", len(plan.Tables),
				"virtual servers", len(plan.VirtualServers))
		}
		if deleted && !first {
			p.log.Warn("kube-proxy still runs on this node, and made its rules again")
			p.events.node("Warning", "KubeProxyRuns", "TakeOver",
				"kube-proxy runs on this node, too, and makes its rules again")
		}
		if !deleted && err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookAgain):
		}
	}
}

// settleIn goes to the backend of the mode, and deletes what other modes left.
func (p *proxy) settleIn(ctx context.Context, b *backends) {
	if b.first != b.then {
		if _, err := p.engine.Switch(ctx, b.then); err != nil && ctx.Err() == nil {
			p.log.Error("the services stay with "+b.first.Name(), "err", err)
			return
		}
	}
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
