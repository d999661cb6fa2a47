//go:build !linux

package rtnetlink
