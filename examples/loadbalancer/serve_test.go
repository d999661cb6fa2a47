package main

import (
	"context"
	"net"
	"net/http"
	"testing"

	"github.com/kernlb/kernlb/internal/test/servetest"
)

// Clients that are slow or idle are disconnected.
func TestHostileClientsAreDisconnected(t *testing.T) {
	t.Parallel()
	answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 1<<20))
	})
	servetest.Hostile(t, "/", 0, func(l net.Listener) func() {
		ctx, stop := context.WithCancel(context.Background())
		go func() { _ = serve(ctx, l, answers{answer, func() {}}) }()
		return stop
	})
}
