package rawnl

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// A Receive ends at the deadline, and when the listener is closed.
func TestListener(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	ns := ok(netnstest.NewNS("listener"))(t)
	defer ns.Close()
	var l *Listener
	require.NoError(t, ns.Do(func() (err error) {
		l, err = Listen([]uint32{1}, 1<<16) // NFNLGRP_CONNTRACK_NEW
		return err
	}))

	require.NoError(t, l.SetDeadline(time.Now().Add(time.Millisecond)))
	require.ErrorIs(t, errOf(l.Receive(make([]byte, 8<<10))), os.ErrDeadlineExceeded)
	require.NoError(t, l.SetDeadline(time.Time{}))

	received := make(chan error, 1)
	go func() {
		_, err := l.Receive(make([]byte, 8<<10))
		received <- err
	}()

	time.Sleep(5 * time.Millisecond)
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-received, ErrClosed)
	require.ErrorIs(t, errOf(l.Receive(nil)), ErrClosed)
}
