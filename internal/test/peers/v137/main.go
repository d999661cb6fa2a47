// Peers-1.37 is the process of kube-proxy 1.37.2 for the program peers, which itself contains
// 1.36.3.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
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
	bit := int32(serve.MasqueradeBit)
	c := &kubeproxyconfig.KubeProxyConfiguration{}
	c.NFTables.MasqueradeBit = &bit
	c.SyncPeriod = metav1.Duration{Duration: serve.SyncPeriod}
	c.MinSyncPeriod = metav1.Duration{Duration: serve.MinSyncPeriod}
	return serve.NewKubeProxy(s, serve.NFTablesFailures,
		func(f corev1.IPFamily, pods serve.Detector, ip net.IP) (proxy.Provider, error) {
			return nftables.NewProxier(ctx, c, f, pods, serve.NodeName, ip, nil, nil, false)
		})
}
