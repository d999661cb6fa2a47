package vmtest

import (
	"bytes"
	"strings"
	"sync"
)

// maxKernelLog is the number of bytes of kernel messages to keep: the last 256 KiB.
const maxKernelLog = 256 << 10

// panicText begins the last message of a kernel that gives up: kernel/panic.c.
const panicText = "Kernel panic - not syncing"

// console keeps the kernel's output on its serial port. It is an io.Writer that is safe for
// concurrent use.
type console struct {
	onPanic func() // called once, at the first panic

	mu       sync.Mutex
	log      []byte
	searched int // bytes of log that hold no panicText
	panicked bool
}

// Write drops carriage returns, which the serial console puts before newlines.
func (c *console) Write(p []byte) (int, error) {
	text := bytes.ReplaceAll(p, []byte("\r"), nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, text...)
	if !c.panicked && bytes.Contains(c.log[c.searched:], []byte(panicText)) {
		c.panicked = true
		c.onPanic()
	}

	if len(c.log) > 2*maxKernelLog {
		c.log = bytes.Clone(c.log[len(c.log)-maxKernelLog:])
	}
	c.searched = max(0, len(c.log)-len(panicText))
	return len(p), nil
}

func (c *console) sawPanic() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.panicked
}

func (c *console) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.log[max(0, len(c.log)-maxKernelLog):])
}

// tail returns the last lines of a log, indented, to go below an error; with a
// panic in it, the lines from there.
func tail(log string, lines int) string {
	all := strings.Split(strings.TrimSpace(log), "\n")
	from := max(0, len(all)-lines)
	for i, line := range all {
		if strings.Contains(line, panicText) || strings.Contains(line, "Oops") {
			from = i
			break
		}
	}

	return indent(strings.Join(all[from:min(len(all), from+lines)], "\n"))
}
