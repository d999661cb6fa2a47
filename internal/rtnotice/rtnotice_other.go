//go:build !linux

// Package rtnotice subscribes to the notices of rtnetlink, which is not there.
package rtnotice
