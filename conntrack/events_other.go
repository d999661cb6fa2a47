//go:build !linux

package conntrack

func openEvents(eventOptions) (eventSource, error) { return nil, ErrNotSupported }
