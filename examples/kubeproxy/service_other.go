//go:build !windows

package main

import "context"

// inService runs a function. Only Windows has services.
func inService(ctx context.Context, _ bool, f func(context.Context) error) error { return f(ctx) }
