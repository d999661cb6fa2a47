// Peers-1.37 is the process of kube-proxy 1.37.2 for the program peers, which has 1.36.3 itself.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/proxy"
	kubeproxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/nftables"

	"github.com/kernlb/kernlb/internal/test/peers/serve"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := errors.New("this program is for the processes that peers starts itself")
	if len(os.Args) > 2 && os.Args[1] == "serve" {
		err = serve.Command(ctx, os.Args[2:], []serve.Maker{
			{Name: "kube-proxy-1.37-nftables", Make: newNFTables}})
	}
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "peers-1.37: %v\n", err)
		os.Exit(1)
	}
}

func newNFTables(ctx context.Context, s *serve.Settings) (serve.Syncer, error) {
	serve.Prepare()
	// Tests decide whether the kernel suffices, not its version.
	if err := os.Setenv("KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK", "1"); err != nil {
		return nil, err
	}
	d, ips := serve.Detectors(s), serve.NodeIPs(s)
	bit := int32(serve.MasqueradeBit)
	c := &kubeproxyconfig.KubeProxyConfiguration{}
	c.NFTables.MasqueradeBit = &bit
	c.SyncPeriod = metav1.Duration{Duration: serve.SyncPeriod}
	c.MinSyncPeriod = metav1.Duration{Duration: serve.MinSyncPeriod}
	var p proxy.Provider
	var err error
	if s.IPv4Only {
		p, err = nftables.NewProxier(ctx, c, corev1.IPv4Protocol, d[corev1.IPv4Protocol],
			serve.NodeName, ips[corev1.IPv4Protocol], nil, nil, false)
	} else {
		p, err = nftables.NewDualStackProxier(ctx, c, d, serve.NodeName, ips, nil, nil, false)
	}
	if err != nil {
		return nil, err
	}
	return serve.NewKubeProxy(p, s, serve.NFTablesFailures), nil
}
