//go:build !linux

package conntrack

import "runtime"

func (t *Table) readSettings() (map[string]uint64, error) { return nil, ErrNotSupported }

func (t *Table) checkEvents() error { return ErrNotSupported }

func (t *Table) writeSetting(string, uint64) error { return ErrNotSupported }

func cores() int { return runtime.NumCPU() }
