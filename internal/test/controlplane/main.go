// Controlplane has the servers that a node proxy of Kubernetes needs, and kube-proxy for
// comparison, in one program. Tests build it and start it; each command is one process.
//
//	controlplane etcd DIR                   etcd on loopback, with its data in a directory
//	controlplane kube-apiserver FLAGS       Kubernetes' API server
//	controlplane endpointslices KUBECONFIG  the controller of EndpointSlices
//	controlplane kube-proxy FLAGS           kube-proxy
//
// All servers are Kubernetes 1.36.3, unchanged. The program is a module of its own because
// Kubernetes needs many modules. "make controlplane" builds bin/controlplane, which takes minutes
// the first time.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr,
			"usage: controlplane etcd|kube-apiserver|endpointslices|kube-proxy ARGUMENTS")
		os.Exit(2)
	}

	name := os.Args[1]
	os.Args = os.Args[1:]
	switch name {
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-proxy":
		os.Exit(cli.Run(kubeproxy.NewProxyCommand()))
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	commands := map[string]func(context.Context, []string) error{
		"etcd": etcd, "endpointslices": endpointSlices,
	}
	err := errors.New("no such command")
	if command := commands[name]; command != nil {
		err = command(ctx, os.Args[1:])
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "controlplane %s: %v\n", name, err)
		os.Exit(1)
	}
}

// etcd runs a cluster of one member until the context ends. It does not wait for the disk: tests
// kill the process, but not the machine, and the page cache survives the process.
func etcd(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("want a directory")
	}
	client := url.URL{Scheme: "http", Host: "127.0.0.1:2379"}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:2380"}
	c := embed.NewConfig()
	c.Dir, c.UnsafeNoFsync, c.LogLevel = args[0], true, "error"
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	server, err := embed.StartEtcd(c)
	if err != nil {
		return fmt.Errorf("start in %s: %w", c.Dir, err)
	}
	defer server.Close()
	select {
	case <-ctx.Done():
		return nil
	case err := <-server.Err():
		return err
	}
}

// endpointSlices runs the controller with the defaults of kube-controller-manager, except the
// client's rate limits: a test of many services would measure these limits.
func endpointSlices(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("want a kubeconfig file")
	}
	config, err := clientcmd.BuildConfigFromFlags("", args[0])
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 1000, 1000
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 12*time.Hour)
	const maxEndpoints, workers = 100, 5
	controller := endpointslice.NewController(ctx, factory.Core().V1().Pods(),
		factory.Core().V1().Services(), factory.Core().V1().Nodes(),
		factory.Discovery().V1().EndpointSlices(), maxEndpoints, client, 0)
	factory.Start(ctx.Done())
	controller.Run(ctx, workers)
	return nil
}
