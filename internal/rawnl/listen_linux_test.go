package rawnl

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// Receive does not wait. Wait ends at a deadline and when the listener is closed.
func TestListener(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	ns := ok(netnstest.NewNS("listener"))(t)
	defer ns.Close()
	var l *Listener
	require.NoError(t, ns.Do(func() (err error) {
		l, err = Listen(ListenConfig{Groups: []uint32{1}, Buffer: 1 << 16}) // NFNLGRP_CONNTRACK_NEW
		return err
	}))
	buf := make([]byte, 8<<10)
	_, err := l.Receive(buf)
	require.Equal(t, ErrEmpty, err)
	require.NoError(t, l.SetDeadline(time.Now().Add(time.Millisecond)))
	require.ErrorIs(t, errOf(l.Wait(buf)), os.ErrDeadlineExceeded)
	_, err = l.Receive(buf)
	require.Equal(t, ErrEmpty, err, "the deadline is that of Wait")

	require.NoError(t, l.SetDeadline(time.Time{}))
	waited := make(chan error, 1)
	go func() {
		_, err := l.Wait(buf)
		waited <- err
	}()
	time.Sleep(5 * time.Millisecond)
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-waited, ErrClosed)
	require.ErrorIs(t, errOf(l.Receive(buf)), ErrClosed)
	require.ErrorIs(t, l.SetDeadline(time.Time{}), ErrClosed)
	require.NoError(t, l.Close())
}
