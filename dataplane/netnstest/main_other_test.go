//go:build !linux

package netnstest

// playRole: there are no roles on other systems.
func playRole() (code int, ok bool) { return 0, false }
