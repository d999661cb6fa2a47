// Package winkernel is a place for the files of kube-proxy's package winkernel.
// TestSameLoadBalancers puts the files and overlay.go.txt here with an overlay (go build -overlay).
// It reads the files from the module cache, and keeps no copy.
package winkernel
