package netnstest

import (
	"context"
	"net/netip"
	"time"
)

// Conns are TCP connections that are held open, to see which of them survive a change.
type Conns struct {
}

// OpenConns opens count connections from a host to servers of this package behind an address, and waits until
// each was greeted. If one cannot be opened, it closes all and returns the error.
func OpenConns(ctx context.Context, from *Host, to netip.AddrPort, count int) (*Conns, error) {
	return nil, ErrNotSupported
}

// ConnsReport sums up rounds of [Conns.Ping].
type ConnsReport struct {
	// Rounds is how many times each connection was tried.
	Rounds int
	// Answered counts the pings that were echoed.
	Answered int
	// Reset, Closed and Silent count the connections that were reset, closed by the server, or did not answer in
	// time. Each is counted once: a connection that died is not tried again.
	Reset, Closed, Silent int
	// Errors are the first few errors, one for each connection that died.
	Errors []error
}

// Lost returns how many connections died.
func (r ConnsReport) Lost() int { return r.Reset + r.Closed + r.Silent }

// Servers returns how many connections each server holds, by name.
func (c *Conns) Servers() map[string]int { return nil }

// Ping sends a line on every connection that still lives and waits, until timeout, for each to be echoed.
func (c *Conns) Ping(timeout time.Duration) ConnsReport { return ConnsReport{} }

// Watch pings all connections at the interval until ctx ends, at least once, and returns the sum.
func (c *Conns) Watch(ctx context.Context, interval, timeout time.Duration) ConnsReport {
	return ConnsReport{}
}

// Close closes the connections.
func (c *Conns) Close() error { return nil }
