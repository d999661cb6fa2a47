// Quickstart shows kernlb at work in a minute. It builds a small network of namespaces, declares
// the services of the manifests in its directory, sends real connections through them, changes one
// service, and cleans up.
//
//	go run ./examples/quickstart
//
// It needs only Linux. An ordinary user gets a user namespace. Nothing outside the new namespaces
// is touched.
package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/manifest"
)

//go:embed *.yaml
var manifests embed.FS

// The ports on which the pods listen, as in the manifests.
const (
	webPort = 8080
	dnsPort = 5353
)

func main() {
	done, code, err := netnstest.ReExecInUserNS()
	if done {
		os.Exit(code)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		err = run(ctx, os.Stdout)
		cancel()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// run runs all steps.
func run(ctx context.Context, out io.Writer) (err error) {
	state, err := load()
	if err != nil {
		return err
	}
	network, err := netnstest.New(ctx, netnstest.Options{})
	if err != nil {
		return err
	}
	defer network.Close()
	if err := serve(network); err != nil {
		return err
	}

	// These three statements are enough: a backend in a network namespace, an engine on it, and an
	// applied state.
	backend, err := nftables.New(&nftables.Config{NetNS: network.Node.NS.NetNS()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, backend.Close()) }()
	engine := dataplane.New(backend, nil)

	s := &story{ctx: ctx, out: out, network: network, engine: engine, state: state}
	s.first()
	s.traffic()
	s.scale()
	s.cleanup()
	return s.err
}

// load reads the manifests.
func load() (servicemodel.State, error) {
	tracker := kube.NewTracker(&kube.Config{Strict: true, Node: servicemodel.Node{
		Name:      "node-1",
		Addresses: []netip.Addr{netip.MustParseAddr(netnstest.Net.NodeIPv4)},
		LocalPods: servicemodel.PodDetector{
			CIDRs: []netip.Prefix{netip.MustParsePrefix(netnstest.Net.ClusterCIDRv4)}},
	}})
	loader := manifest.NewLoader(tracker)
	for _, name := range []string{"web.yaml", "dns.yaml"} {
		f, err := manifests.Open(name)
		if err != nil {
			return servicemodel.State{}, err
		}
		err = loader.Read(name, f)
		if err := errors.Join(err, f.Close(), loader.Result().Err()); err != nil {
			return servicemodel.State{}, err
		}
	}
	return tracker.State(), nil
}

// serve starts the servers of the pods. Each answers with its name and the client's source address.
func serve(network *netnstest.Cluster) error {
	for _, pod := range append(network.Pods, network.RemotePods...) {
		err := errors.Join(pod.Serve(servicemodel.TCP, webPort), pod.Serve(servicemodel.TCP,
			dnsPort),
			pod.Serve(servicemodel.UDP, dnsPort))
		if err != nil {
			return err
		}
	}
	return nil
}
