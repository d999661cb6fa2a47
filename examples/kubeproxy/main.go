// Kubeproxy replaces kube-proxy on a node of Kubernetes. It has the same flags and configuration
// files (KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1, version 1.36), the same modes
// and the same ports, and takes over from a kube-proxy on the node.
//
//	kubeproxy --config /var/lib/kube-proxy/config.conf
//	kubeproxy compare --config /var/lib/kube-proxy/config.conf
//
// README.md says how to install it, and how it treats each field and flag. The files:
//
//	fields.go    the table of fields and flags: all the rest of the configuration follows from it
//	settings.go  what each field means for the program
//	flags.go, load.go    the command line; the file, and the defaults
//	proxy.go     objects of the API server become states, and an engine makes the kernel hold
//	             them; the events in the API server
//	backend.go   the backend, and the takeover from kube-proxy and from other modes
//	compare.go   the command compare;  node.go: what changes on this node without kube-proxy
//	kernel.go    the mode kernelspace, on Windows;  service_windows.go: as a service of Windows
//	serve.go     the HTTP servers
//
// docs/programs.md explains the subject. examples/nodeproxy does the same in 250 lines.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // the format json
	"k8s.io/klog/v2"

	"github.com/kernlb/kernlb/examples/command/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := start(ctx, os.Args[1:])
	stop()
	klog.Flush()
	switch {
	case errors.Is(err, pflag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "kernlb-kubeproxy:", err)
		os.Exit(status(os.Args[1:], err))
	}
}

// status returns the exit code of an error: 2 if compare could not compare, and else 1.
func status(args []string, err error) int {
	if len(args) > 0 && args[0] == "compare" && !errors.Is(err, errDiffers) {
		return 2
	}
	return 1
}

// start executes the command line.
func start(ctx context.Context, args []string) error {
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	if o.version {
		fmt.Println(version.Of("kernlb-kubeproxy") + ", configuration of kube-proxy 1.36")
		return nil
	}

	if o.writeConfigTo != "" {
		return o.writeConfig(os.Stderr)
	}
	log, err := o.logger()
	if err != nil {
		return err
	}
	for _, w := range o.warnings {
		log.Warn(w)
	}
	switch {
	case o.cleanup:
		return o.settings.cleanup(ctx, log)
	case o.initOnly:
		return o.settings.initialize(ctx, log)
	}

	client, err := o.settings.newClient()
	if err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	if o.compare {
		return o.settings.compare(ctx, client, log, os.Stdout)
	}
	return inService(ctx, o.settings.asService, func(ctx context.Context) error {
		return run(ctx, o, client, log)
	})
}

// logger configures klog, which client-go logs with, and returns a logger that writes to klog.
func (o *options) logger() (*slog.Logger, error) {
	gates, err := logGates(o.config.FeatureGates)
	if err != nil {
		return nil, err
	}
	if err := logsapi.ValidateAndApply(&o.config.Logging, gates); err != nil {
		return nil, fmt.Errorf("logging: %w", err)
	}
	return slog.Default(), nil // logsapi has made it klog's
}

// newClient makes a client of the API server, as kube-proxy does.
func (s *settings) newClient() (kubernetes.Interface, error) {
	var r *rest.Config
	var err error
	if s.client.Kubeconfig == "" && s.master == "" {
		if r, err = rest.InClusterConfig(); err != nil {
			err = fmt.Errorf("%w; outside a pod give --config or --kubeconfig", err)
		}
	} else {
		r, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: s.client.Kubeconfig},
			&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: s.master}},
		).ClientConfig()
	}

	if err != nil {
		return nil, err
	}
	r.AcceptContentTypes, r.ContentType = s.client.AcceptContentTypes, s.client.ContentType
	r.QPS, r.Burst = s.client.QPS, int(s.client.Burst)
	return kubernetes.NewForConfig(r)
}
