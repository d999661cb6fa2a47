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
	ns := must.OK(Open(""))(t)
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
	ns := must.OK(Open(os.DevNull))(t)
	defer ns.Close()
	require.ErrorContains(t, ns.Do(func() error { return nil }),
		"enter the network namespace "+os.DevNull)
}
