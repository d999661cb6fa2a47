package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"

	"github.com/kernlb/kernlb/internal/test/winkernel/winkernel"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxy "k8s.io/kubernetes/pkg/proxy/apis/config"

	"github.com/kernlb/kernlb/examples/kernelspace/hnsfake"
)

// main reads scenarios from standard input, and writes the outcomes of their steps by name.
func main() {
	var all []scenario
	err := json.NewDecoder(os.Stdin).Decode(&all)
	out := map[string][]outcome{}
	for i := range all {
		if err == nil {
			out[all[i].Name], err = run(&all[i])
		}
	}

	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "winkernel:", err)
		os.Exit(1)
	}
}

type hostMac struct{}

func (hostMac) GetHostMac(net.IP) string { return hostMAC }

// run runs a scenario with a proxier for each family, as kube-proxy does.
func run(s *scenario) ([]outcome, error) {
	h, err := machine(s)
	if err != nil {
		return nil, err
	}
	var proxiers []*winkernel.Proxier
	for f, ip := range map[corev1.IPFamily]string{corev1.IPv4Protocol: nodeIP,
		corev1.IPv6Protocol: nodeIPv6} {
		if f == corev1.IPv6Protocol && !s.Features.IPv6DualStack {
			continue
		}
		p, err := winkernel.ForComparison(f, nodeName, net.ParseIP(ip), service{h}, hostMac{},
			healthz, kubeproxy.KubeProxyWinkernelConfiguration{NetworkName: s.Network.Name,
				SourceVip: s.Config.SourceVIP, EnableDSR: s.Config.EnableDSR,
				RootHnsEndpointName:   s.Config.RootEndpoint,
				ForwardHealthCheckVip: s.Config.ForwardVIP})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		p.OnServiceSynced()
		proxiers = append(proxiers, p)
	}

	var out []outcome
	var before objects
	for _, step := range s.Steps {
		fail(h, &step)
		for _, p := range proxiers {
			tell(p, before, step)
			if err := p.SyncNow(); err != nil {
				return nil, fmt.Errorf("%s: %w", s.Name, err)
			}
		}

		o, err := observe(h, s)
		if err != nil {
			return nil, err
		}
		out, before = append(out, o), step
	}

	return out, nil
}

// tell reports the difference between two steps to a proxier.
func tell(p *winkernel.Proxier, before, after objects) {
	tellOf(before.Services, after.Services, p.OnServiceAdd, p.OnServiceUpdate,
		p.OnServiceDelete)
	tellOf(before.Slices, after.Slices, p.OnEndpointSliceAdd, p.OnEndpointSliceUpdate,
		p.OnEndpointSliceDelete)
}

// tellOf reports the difference between two lists of objects.
func tellOf[T any, O interface {
	*T
	metav1.Object
}](before, after []T, add func(O), update func(old, o O), gone func(O)) {
	known := map[string]O{}
	for i := range before {
		o := O(&before[i])
		known[o.GetName()] = o
	}

	for i := range after {
		o := O(&after[i])
		if was := known[o.GetName()]; was == nil {
			add(o)
		} else if !equality.Semantic.DeepEqual(was, o) {
			update(was, o)
		}

		delete(known, o.GetName())
	}

	for _, o := range known {
		gone(o)
	}
}

// service adapts the fake to winkernel's interface.
type service struct{ *hnsfake.Service }

var _ winkernel.HcnService = service{}
