package threadns

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
)

func TestItRunsWhereTheThreadIsAlready(t *testing.T) {
	t.Parallel()
	ns := must.OK(Open(0))(t)
	there := must.OK(os.Readlink(threadNetNS))(t)
	failure := errors.New("failure")
	var here string
	require.ErrorIs(t, ns.Do(func() (err error) {
		here, err = os.Readlink(threadNetNS)
		return errors.Join(err, failure)
	}), failure)
	require.Equal(t, there, here)
	require.NoError(t, ns.Close())
}

func TestWhatIsNoNamespaceIsRefused(t *testing.T) {
	t.Parallel()
	_, err := Open(-1)
	require.EqualError(t, err, "NetNS: -1 is not a file descriptor")
	null := must.OK(os.Open(os.DevNull))(t)
	defer null.Close()
	ns := must.OK(Open(int(null.Fd())))(t)
	defer ns.Close()
	require.ErrorContains(t, ns.Do(func() error { return nil }), "enter the network namespace")
}
