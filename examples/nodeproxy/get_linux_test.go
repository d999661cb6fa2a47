package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// get sends an HTTP request to a port and path of a node, and returns the status and the body.
func get(node *netnstest.Host, what string) (answer string, err error) {
	port, path, _ := strings.Cut(what, "/")
	err = node.NS.Do(func() error {
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
	})
	return answer, err
}

// says waits until a node's answer contains a text, because answers follow the kernel's changes.
func says(t *testing.T, node *netnstest.Host, what, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		answer, err := get(node, what)
		return err == nil && strings.Contains(answer, text)
	}, 20*time.Second, 20*time.Millisecond, "%s: %s", what, text)
}
