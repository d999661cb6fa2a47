package rawnl

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// dialSomeFamily returns a connection to a generic netlink family that this kernel has.
func dialSomeFamily(t *testing.T) *Conn {
	t.Helper()
	for _, name := range []string{"ethtool", "devlink", "tcp_metrics", "netdev"} {
		c, err := DialGeneric(t.Context(), name, "", &Config{NetNS: newNetNS(t)})
		if err == nil {
			t.Cleanup(func() { require.NoError(t, c.Close()) })
			return c
		}
	}

	t.Skip("needs a kernel with a family of generic netlink")
	return nil
}

func TestKernelFindsFamilies(t *testing.T) {
	t.Parallel()
	c := dialSomeFamily(t)
	require.Greater(t, c.family, familyController)
	_, err := DialGeneric(t.Context(), "nosuchfamily", "nosuchmodule", nil)
	require.ErrorIs(t, err, syscall.ENOENT)
}

func TestKernelSaysThatAnswersOfGenericNetlinkWereLost(t *testing.T) {
	t.Parallel()
	c := dialSomeFamily(t)
	sock := c.sock.(*kernelSocket)
	ok(sock.buffer(64<<10, unix.SO_RCVBUF, unix.SO_RCVBUF))(t)
	var b Batch
	for range 1000 { // the connection assumes that the queue has room for all answers
		b.Command(255, 1, 0, Object{Verb: "ask", Name: "what is not a command"})
	}
	_, err := c.SendAll(t.Context(), &b, nil)
	require.ErrorIs(t, err, ErrAnswersLost)
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	b.Reset()
	b.Command(255, 1, 0, Object{})
	_, err = c.Query(t.Context(), &b)
	require.Equal(t, syscall.EOPNOTSUPP, Refusals(err)[0].Errno, "it can be used again")
}
