// Package validation holds what strict trackers of package kube refuse against what an API server
// of Kubernetes refuses. It has tests only.
package validation
