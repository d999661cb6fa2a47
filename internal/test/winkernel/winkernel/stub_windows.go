package winkernel

import (
	"errors"
	"net"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/winkernel"
)

// These stubs replace the declarations of the overlay, so that programs build without it.
type (
	HcnService      = winkernel.HcnService
	HostMacProvider = winkernel.HostMacProvider
	Proxier         struct{ *winkernel.Proxier }
)

// ForComparison needs the overlay.
func ForComparison(v1.IPFamily, string, net.IP, HcnService, HostMacProvider, int,
	config.KubeProxyWinkernelConfiguration) (*Proxier, error) {
	return nil, errors.New("built without the overlay of TestSameLoadBalancers")
}

// SyncNow needs the overlay.
func (*Proxier) SyncNow() error { return errors.ErrUnsupported }
