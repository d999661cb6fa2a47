// Package kernelspace is a [backends.Backend] on the Host Networking Service of Windows (HNS), as
// kube-proxy's mode kernelspace (winkernel). It is experimental: untested on Windows. Everything
// here except the binding (hns_windows.go) is pure Go, and tested on other systems against package
// hnsfake.
//
//	backend, err := kernelspace.New(&kernelspace.Config{Network: "vxlan0", …})
//	…
//	engine := dataplane.New(backend, nil)
//
// Each frontend that balances becomes one load balancer of HNS: an address, a protocol, a port, and
// a list of HNS endpoints. The container runtime creates the endpoints on this node. Endpoints
// elsewhere, and on overlay networks cluster IPs and the source VIP, are remote endpoints that the
// backend creates and deletes. README.md has the mapping and the limits, and
// docs/decisions/kernelspace.md the reasons.
//
// The files: hns.go has the types of HNS and the interface [HNS] of the calls that the backend
// needs. check.go refuses services. render.go translates frontends, and network.go endpoints.
// plan.go compares and lists the steps, commit.go takes them. readback.go reads HNS. record.go
// stores the data for which HNS has no place.
package kernelspace
