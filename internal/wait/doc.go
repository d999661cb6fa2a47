// Package wait has the three waits of the code: for a time or the end of a context, for packets
// that the kernel is working on, and for a share of the processor's time.
package wait
