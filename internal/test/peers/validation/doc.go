// Package validation has only tests. They compare which objects strict trackers of package kube
// refuse with which an API server of Kubernetes refuses.
package validation
