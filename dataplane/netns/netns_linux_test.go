package netns

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestANamespaceHasThreeNames(t *testing.T) {
	t.Parallel()
	own, err := Namespace("").Open()
	require.NoError(t, err)
	defer own.Close()
	want, err := own.Stat()
	require.NoError(t, err)
	for _, n := range []Namespace{"/proc/self/ns/net", FD(int(own.Fd())), Process(os.Getpid())} {
		file, err := n.Open()
		require.NoError(t, err, n)
		got, err := file.Stat()
		require.NoError(t, err)
		require.NoError(t, file.Close())
		require.True(t, os.SameFile(want, got), n)
	}
}

func TestWhatIsNoNamespaceIsAnError(t *testing.T) {
	t.Parallel()
	for _, n := range []Namespace{FD(-1), Process(0), "/run/netns/nosuch"} {
		_, err := n.Open()
		require.ErrorIs(t, err, os.ErrNotExist)
		require.ErrorContains(t, err, string("network namespace: open "+n))
	}
}
