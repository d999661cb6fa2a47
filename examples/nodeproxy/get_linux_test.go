package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

// get sends an HTTP request to a port and path of a node, and returns the status and the body.
func get(node *netnstest.Host, what string) (answer string, err error) {
	return nstest.Get(node.NS, node.IPv4.String()+":"+what)
}

// says waits until a node's answer contains a text, because answers follow the kernel's changes.
func says(t *testing.T, node *netnstest.Host, what, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		answer, err := get(node, what)
		return err == nil && strings.Contains(answer, text)
	}, 20*time.Second, 20*time.Millisecond, "%s: %s", what, text)
}
