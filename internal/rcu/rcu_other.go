//go:build !linux

// Package rcu waits until packets that were under way are through.
package rcu

import "context"

// Wait returns at once: there are no packets.
func Wait(ctx context.Context) error { return context.Cause(ctx) }
