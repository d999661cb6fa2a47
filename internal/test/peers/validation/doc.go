// Package validation has only tests. They compare the objects that strict trackers of package kube
// refuse with the objects that an API server of Kubernetes refuses.
package validation
