package serve_test

import (
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/kernlb/kernlb/internal/serve"
	"github.com/kernlb/kernlb/internal/test/servetest"
)

func TestHostileClients(t *testing.T) {
	t.Parallel()
	answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 1<<20)) // more than buffers hold
	})
	servetest.Hostile(t, "/", 8, func(l net.Listener) func() {
		s := serve.Server(answer)
		go func() { _ = s.Serve(serve.NewLimit(8).Listener(l)) }()
		return func() { _ = s.Close(); time.Sleep(time.Second) }
	})
}
