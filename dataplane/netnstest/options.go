package netnstest

import "fmt"

// maxHosts limits each kind of host, because their addresses differ only in the last byte.
const maxHosts = 200

// Options describe a [Cluster]. The zero value is a routed cluster with three pods, two remote pods
// and two outside clients.
type Options struct {
	// Pods is the number of pods on the node, each in its own namespace. 0 means 3, negative no
	// pods.
	Pods int
	// RemotePods is the number of pods on the other node; they share that node's namespace. 0 means
	// 2, negative no pods.
	RemotePods int
	// OutsideClients is the number of clients outside the cluster; they share one namespace. 0
	// means 2, negative no clients.
	OutsideClients int
	// Bridge, if not empty, names a bridge on the node for the pods' interfaces (as in the CNI
	// plugin "bridge"). Otherwise each pod is routed through its own interface (as in "ptp" and
	// Calico). In both cases, packets between pods pass through the node's IP layer.
	Bridge string
	// PodInterfacePrefix is the prefix of the names of the pods' interfaces on the node. "" means
	// "veth".
	PodInterfacePrefix string
}

// withDefaults fills in the zero values, and refuses options that cannot be built.
func (o Options) withDefaults() (Options, error) {
	for _, count := range []struct {
		field    string
		value    *int
		standard int
	}{
		{"Pods", &o.Pods, 3},
		{"RemotePods", &o.RemotePods, 2},
		{"OutsideClients", &o.OutsideClients, 2},
	} {
		switch {
		case *count.value == 0:
			*count.value = count.standard
		case *count.value < 0:
			*count.value = 0
		case *count.value > maxHosts:
			return o, fmt.Errorf("netnstest: options: %s: %d is more than %d", count.field,
				*count.value, maxHosts)
		}
	}

	if o.PodInterfacePrefix == "" {
		o.PodInterfacePrefix = "veth"
	}

	// An interface name has at most 15 bytes (IFNAMSIZ); three bytes are for the pod's number.
	if len(o.PodInterfacePrefix) > 12 {
		return o, fmt.Errorf("netnstest: options: PodInterfacePrefix: %q is longer than 12 bytes",
			o.PodInterfacePrefix)
	}

	if len(o.Bridge) > 15 {
		return o, fmt.Errorf("netnstest: options: Bridge: %q is longer than 15 bytes", o.Bridge)
	}
	return o, nil
}
