//go:build !linux

package growth

import "time"

var start = time.Now()

// now returns the time since the process began.
func now() time.Duration { return time.Since(start) }
