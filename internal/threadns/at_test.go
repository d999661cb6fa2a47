package threadns

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestANamespaceIsNamedInOneWay(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ns")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	for _, c := range []struct {
		fd   int
		path string
		ns   int
		err  string
	}{
		{0, "", 0, ""}, {7, "", 7, ""}, {-1, "", 0, "NetNS: -1 is not a file descriptor"},
		{7, path, 0, "NetNS and NetNSPath: both are set"},
		{0, path + "x", 0, "NetNSPath: open " + path + "x"},
	} {
		ns, release, err := At(c.fd, c.path)
		if c.err != "" {
			require.ErrorContains(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.ns, ns)
		release()
	}
	ns, release, err := At(0, path)
	require.NoError(t, err)
	require.Positive(t, ns)
	release()
}
