package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// get asks a node over HTTP, at its port and path, and returns the status and the body.
func get(t *testing.T, node *netnstest.Host, what string) string {
	t.Helper()
	port, path, _ := strings.Cut(what, "/")
	var answer string
	require.NoError(t, node.NS.Do(func() error {
		conn, err := net.Dial("tcp", net.JoinHostPort(node.IPv4.String(), port))
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET /"+path+" HTTP/1.0\r\n\r\n"); err != nil {
			return err
		}
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		answer = r.Status + " " + string(body)
		return err
	}))
	return answer
}
