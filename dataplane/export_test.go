package dataplane

import "context"

// AwaitPacketsBy replaces Run's wait for packets.
func (e *Engine) AwaitPacketsBy(grace func(context.Context) error) { e.grace = grace }
