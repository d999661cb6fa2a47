// Package winkernel is a place for the files of kube-proxy's package winkernel, which
// TestSameLoadBalancers puts here with an overlay (go build -overlay), beside overlay.go.txt. They
// are read from the module cache, and no copy of them is kept.
package winkernel
