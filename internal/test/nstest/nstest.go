// Package nstest is for tests that run programs in network namespaces.
package nstest

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// New returns an empty network namespace, which is removed at the end of the test. It skips the
// test if no namespace can be created.
func New(tb testing.TB) *netnstest.NS {
	tb.Helper()
	netnstest.Require(tb)
	ns, err := netnstest.NewNS(tb.Name())
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, ns.Close()) })
	return ns
}

// Run runs a command, such as "ip link set lo up", in a namespace and returns its output. It skips
// the test if the program is not installed.
func Run(tb testing.TB, ns *netnstest.NS, command string) string {
	tb.Helper()
	return Exec(tb, ns, "", strings.Fields(command)...)
}

// NFT loads rules in the syntax of nft.
func NFT(tb testing.TB, ns *netnstest.NS, rules string) {
	tb.Helper()
	Exec(tb, ns, rules, "nft", "-f", "-")
}

// Exec is Run with a list of words, and with a text for the standard input.
func Exec(tb testing.TB, ns *netnstest.NS, input string, words ...string) string {
	tb.Helper()
	if _, err := exec.LookPath(words[0]); err != nil {
		tb.Skipf("%s is not installed", words[0])
	}
	var stdout, stderr bytes.Buffer
	require.NoError(tb, ns.Do(func() error {
		// The context of a test ends before its last functions are called.
		cmd := exec.CommandContext(context.WithoutCancel(tb.Context()), words[0], words[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
		return cmd.Run()
	}), "%s: %s%s", strings.Join(words, " "), &stdout, &stderr)

	return stdout.String()
}

// Get sends an HTTP request from a namespace to an address and path, such as "127.0.0.1:80/path",
// and returns the status and the body.
func Get(ns *netnstest.NS, what string) (answer string, err error) {
	address, path, _ := strings.Cut(what, "/")
	err = ns.Do(func() error {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = io.WriteString(conn, "GET /"+path+" HTTP/1.0\r\nHost: "+address+"\r\n\r\n")
		if err != nil {
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
