//go:build !linux

package ipvsnl

// openTransport returns [ErrNotSupported].
func openTransport(int) (Transport, error) { return nil, ErrNotSupported }
