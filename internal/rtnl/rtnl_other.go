//go:build !linux

// Package rtnl asks rtnetlink, which is not there.
package rtnl
