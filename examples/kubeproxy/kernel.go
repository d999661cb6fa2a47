package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/examples/kernelspace"
)

// modes returns the modes of this system. The first is the default.
func modes() []v1alpha1.ProxyMode {
	if runtime.GOOS == "windows" {
		return []v1alpha1.ProxyMode{modeKernel}
	}
	return []v1alpha1.ProxyMode{modeIPTables, modeNFTables, modeIPVS}
}

// onWindows returns a flag that kube-proxy has only on Windows (addOSFlags in
// cmd/kube-proxy/app/init_windows.go).
func onWindows(flag string) string {
	if runtime.GOOS == "windows" {
		return flag
	}
	return ""
}

// openKernel opens the backend of the mode kernelspace. It takes over the load balancers at the
// places of services, which an earlier kube-proxy has left.
func (s *settings) openKernel(log *slog.Logger) (backends.Backend, error) {
	c := s.kernel
	c.Logger, c.TakeOver, c.HealthzPort = log, true, s.healthzAt.Port()
	c.Store = kernelspace.File(filepath.Join(cmp.Or(os.Getenv("ProgramData"), os.TempDir()),
		"kernlb", "kubeproxy.json"))
	var err error
	if c.NodeIPs, err = nodeIPs(s.bindAddress); err != nil {
		return nil, err
	}
	if len(c.NodeIPs) > 0 {
		if c.HostMAC, err = kernelspace.HostMAC(c.NodeIPs[0]); err != nil {
			log.Warn("overlay networks need the node's link-layer address", "err", err)
		}
	}

	return kernelspace.New(&c)
}

// nodeIPs returns an address of the node for each family: the configured address, or else the first
// address that is neither link-local nor a loopback address.
func nodeIPs(configured netip.Addr) (l []netip.Addr, err error) {
	if configured.IsValid() {
		l = append(l, configured)
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	for _, own := range all {
		p, err := netip.ParsePrefix(own.String())
		if err != nil || !p.Addr().IsGlobalUnicast() {
			continue
		}
		if !slices.ContainsFunc(l, func(a netip.Addr) bool { return a.Is4() == p.Addr().Is4() }) {
			l = append(l, p.Addr())
		}
	}

	return l, nil
}
