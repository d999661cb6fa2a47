package kubeapi_test

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"

	"k8s.io/client-go/kubernetes"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/kubeapi"
)

// A node proxy.
func Example() {
	run := func(ctx context.Context, client kubernetes.Interface, nodeName string,
		clusterCIDRs []netip.Prefix, keeper dataplane.Flows, logger *slog.Logger) error {
		source, err := kubeapi.New(client, &kubeapi.Config{Tracker: kube.Config{
			Node: servicemodel.Node{Name: nodeName,
				LocalPods: servicemodel.PodDetector{CIDRs: clusterCIDRs}},
		}})
		if err != nil {
			return err
		}
		backend, err := nftables.New(nil)
		if err != nil {
			return err
		}
		defer backend.Close()
		engine := dataplane.New(backend, &dataplane.Config{Logger: logger, Flows: keeper})
		var running sync.WaitGroup
		defer running.Wait() // the backend is closed afterwards
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		running.Go(func() { engine.Run(ctx, nil) })
		return source.Run(ctx, func(s servicemodel.State) { engine.Set(s) })
	}

	_ = run
}
