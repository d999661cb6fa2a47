//go:build !linux

package kernelprobe

// Running returns the zero Release.
func Running() Release { return Release{} }
