package main

import (
	"context"
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
	serve.Prepare()
	// Tests decide whether the kernel suffices, not its version.
	if err := os.Setenv("KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK", "1"); err != nil {
		return nil, err
	}
	d, ips := serve.Detectors(s), serve.NodeIPs(s)
	var p proxy.Provider
	var err error
	if s.IPv4Only {
		p, err = nftables.NewProxier(ctx, corev1.IPv4Protocol, serve.SyncPeriod,
			serve.MinSyncPeriod, false, serve.MasqueradeBit, d[corev1.IPv4Protocol], serve.NodeName,
			ips[corev1.IPv4Protocol], nil, nil, nil, false)
	} else {
		p, err = nftables.NewDualStackProxier(ctx, serve.SyncPeriod, serve.MinSyncPeriod, false,
			serve.MasqueradeBit, d, serve.NodeName, ips, nil, nil, nil, false)
	}
	if err != nil {
		return nil, err
	}
	return serve.NewKubeProxy(p, s, serve.NFTablesFailures), nil
}

// newKubeIPTables makes the iptables proxier run the programs of that variant: "nft" or "legacy".
func newKubeIPTables(variant string) func(context.Context, *serve.Settings) (serve.Syncer, error) {
	return func(ctx context.Context, s *serve.Settings) (serve.Syncer, error) {
		serve.Prepare()
		if err := useIPTables(variant); err != nil {
			return nil, err
		}
		d, ips, ipts := serve.Detectors(s), serve.NodeIPs(s), utiliptables.NewBestEffort()
		var p proxy.Provider
		var err error
		if s.IPv4Only {
			p, err = iptables.NewProxier(ctx, corev1.IPv4Protocol, ipts[corev1.IPv4Protocol],
				utilsysctl.New(), serve.SyncPeriod, serve.MinSyncPeriod, false, false,
				serve.MasqueradeBit, d[corev1.IPv4Protocol], serve.NodeName,
				ips[corev1.IPv4Protocol], nil, nil, nil, false)
		} else {
			p, err = iptables.NewDualStackProxier(ctx, ipts, utilsysctl.New(), serve.SyncPeriod,
				serve.MinSyncPeriod, false, false, serve.MasqueradeBit, d, serve.NodeName, ips,
				nil, nil, nil, false)
		}
		if err != nil {
			return nil, err
		}
		return serve.NewKubeProxy(p, s, serve.IPTablesFailures), nil
	}
}

func newKubeIPVS(ctx context.Context, s *serve.Settings) (serve.Syncer, error) {
	serve.Prepare()
	if err := useIPTables("nft"); err != nil {
		return nil, err
	}
	virtual, sets := utilipvs.New(), utilipset.New()
	if err := ipvs.CanUseIPVSProxier(ctx, virtual, sets, ""); err != nil {
		return nil, err
	}
	d, ips, ipts := serve.Detectors(s), serve.NodeIPs(s), utiliptables.NewBestEffort()
	var p proxy.Provider
	var err error
	if s.IPv4Only {
		p, err = ipvs.NewProxier(ctx, corev1.IPv4Protocol, ipts[corev1.IPv4Protocol], virtual, sets,
			utilsysctl.New(), serve.SyncPeriod, serve.MinSyncPeriod, nil, false,
			0, 0, 0, false, serve.MasqueradeBit, d[corev1.IPv4Protocol], serve.NodeName,
			ips[corev1.IPv4Protocol], nil, nil, "", nil, false)
	} else {
		p, err = ipvs.NewDualStackProxier(ctx, ipts, virtual, sets, utilsysctl.New(),
			serve.SyncPeriod, serve.MinSyncPeriod, nil, false, 0, 0, 0, false, serve.MasqueradeBit,
			d, serve.NodeName, ips, nil, nil, "", nil, false)
	}
	if err != nil {
		return nil, err
	}
	return serve.NewKubeProxy(p, s, serve.IPTablesFailures), nil
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
	// Legacy programs of all namespaces would wait for one another otherwise.
	if err := os.Setenv("XTABLES_LOCKFILE", filepath.Join(dir, "lock")); err != nil {
		return err
	}
	return os.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}
