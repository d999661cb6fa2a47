package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	utilsysctl "k8s.io/component-helpers/node/util/sysctl"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/iptables"
	"k8s.io/kubernetes/pkg/proxy/ipvs"
	utilipset "k8s.io/kubernetes/pkg/proxy/ipvs/ipset"
	utilipvs "k8s.io/kubernetes/pkg/proxy/ipvs/util"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	utiliptables "k8s.io/kubernetes/pkg/util/iptables"

	"github.com/kernlb/kernlb/internal/test/peers/serve"
)

func newKubeNFTables(ctx context.Context, s *serve.Settings) (serve.Syncer, error) {
	return serve.NewKubeProxy(s, serve.NFTablesFailures,
		func(f corev1.IPFamily, pods serve.Detector, ip net.IP) (proxy.Provider, error) {
			return nftables.NewProxier(ctx, f, serve.SyncPeriod, serve.MinSyncPeriod, false,
				serve.MasqueradeBit, pods, serve.NodeName, ip, nil, nil, nil, false)
		})
}

// newKubeIPTables returns a maker of the iptables proxier that runs the programs of a variant:
// "nft" or "legacy".
func newKubeIPTables(variant string) func(context.Context, *serve.Settings) (serve.Syncer, error) {
	return func(ctx context.Context, s *serve.Settings) (serve.Syncer, error) {
		if err := useIPTables(variant); err != nil {
			return nil, err
		}
		tools := utiliptables.NewBestEffort()
		return serve.NewKubeProxy(s, serve.IPTablesFailures,
			func(f corev1.IPFamily, pods serve.Detector, ip net.IP) (proxy.Provider, error) {
				return iptables.NewProxier(ctx, f, tools[f], utilsysctl.New(), serve.SyncPeriod,
					serve.MinSyncPeriod, false, false, serve.MasqueradeBit, pods, serve.NodeName,
					ip, nil, nil, nil, false)
			})
	}
}

func newKubeIPVS(ctx context.Context, s *serve.Settings) (serve.Syncer, error) {
	if err := useIPTables("nft"); err != nil {
		return nil, err
	}
	virtual, sets := utilipvs.New(), utilipset.New()
	if err := ipvs.CanUseIPVSProxier(ctx, virtual, sets, ""); err != nil {
		return nil, err
	}
	tools := utiliptables.NewBestEffort()
	return serve.NewKubeProxy(s, serve.IPTablesFailures,
		func(f corev1.IPFamily, pods serve.Detector, ip net.IP) (proxy.Provider, error) {
			return ipvs.NewProxier(ctx, f, tools[f], virtual, sets, utilsysctl.New(),
				serve.SyncPeriod, serve.MinSyncPeriod, nil, false, 0, 0, 0, false,
				serve.MasqueradeBit, pods, serve.NodeName, ip, nil, nil, "", nil, false)
		})
}

// useIPTables makes "iptables" and its companions run the programs of a variant, whatever the
// machine's default is.
func useIPTables(variant string) error {
	dir, err := os.MkdirTemp("", "peers-iptables-")
	if err != nil {
		return err
	}
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, part := range []string{"", "-save", "-restore"} {
			program, err := exec.LookPath(name + "-" + variant + part)
			if err != nil {
				return err
			}
			if program, err = filepath.EvalSymlinks(program); err != nil {
				return err
			}
			if err := os.Symlink(program, filepath.Join(dir, name+part)); err != nil {
				return err
			}
		}
	}

	// Otherwise legacy programs of all namespaces would wait for each other.
	if err := os.Setenv("XTABLES_LOCKFILE", filepath.Join(dir, "lock")); err != nil {
		return err
	}
	return os.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}
