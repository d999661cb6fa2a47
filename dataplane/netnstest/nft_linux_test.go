package netnstest

import (
	"bytes"
	"fmt"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// nft loads rules into a namespace, or skips the test if nft is missing.
func nft(tb testing.TB, ns *NS, rules string) {
	tb.Helper()
	path, err := exec.LookPath("nft")
	if err != nil {
		tb.Skip("needs the nft program to load rules")
	}
	require.NoError(tb, ns.Do(func() error {
		cmd := exec.Command(path, "-f", "-")
		cmd.Stdin = bytes.NewBufferString(rules)
		out, err := cmd.CombinedOutput()
		if err != nil || len(out) > 0 {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	}))
}
