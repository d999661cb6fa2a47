package rawnl

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/test/nstest"
)

func TestMoreErrorsThanTheQueueHolds(t *testing.T) {
	t.Parallel()
	c := dialNew(t)
	sock := c.sock.(*kernelSocket)
	sock.queue = ok(sock.buffer(64<<10, unix.SO_RCVBUF, unix.SO_RCVBUF))(t)
	c.queue = sock.queue
	n := sock.queue / 256 // an answer needs more than 256 bytes
	commitNumbers(t, c, 1)
	before := generation(t, c)

	var b Batch
	for range n {
		appendNumbers(&b, FlagExcl, 0)
	}
	err := c.Commit(t.Context(), &b, 0)
	require.ErrorIs(t, err, ErrAnswersLost)
	require.ErrorIs(t, err, unix.EEXIST, "what did arrive is told")
	require.Less(t, len(err.Error()), 500)
	require.Equal(t, before, generation(t, c), "the next request is not confused")

	done, err := c.SendAll(t.Context(), requestNowhere(n), nil)
	require.Equal(t, n, done)
	require.NotErrorIs(t, err, ErrAnswersLost,
		"independent requests are sent so that it holds all answers")
	require.Len(t, refused(err), n)
}

// requestNowhere writes n requests for a table that does not exist.
func requestNowhere(n int) *Batch {
	var b Batch
	for range n {
		b.Message(SubsysNFTables, unix.NFT_MSG_GETTABLE, 0, familyIPv4, 0,
			Object{Verb: "get", Kind: "table", Name: "nowhere"})
		b.Text(unix.NFTA_TABLE_NAME, "nowhere")
	}

	return &b
}

// inUserNamespace marks the test binary that runs as the root of an unprivileged user namespace.
const inUserNamespace = "NFNL_IN_USER_NAMESPACE"

// TestUserNamespace repeats tests of the kernel without CAP_NET_ADMIN in the initial user
// namespace.
func TestUserNamespace(t *testing.T) {
	t.Parallel()
	if os.Getenv(inUserNamespace) != "" {
		t.Skip("this is the inner run")
	}
	again := "BatchesAreLimited|KernelApplies.*|KernelRefuses.*|MoreErrors.*"
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run", "^Test("+again+")$")
	cmd.Env = append(os.Environ(), inUserNamespace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if _, ran := err.(*exec.ExitError); err != nil && !ran {
		t.Skipf("making a user namespace is not allowed here: %v", err)
	}
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestBatchesAreLimited")
}

func TestBatchesAreLimited(t *testing.T) {
	t.Parallel()
	c := dialNew(t)
	if os.Getenv(inUserNamespace) == "" {
		sock := c.sock.(*kernelSocket)
		n := ok(sock.buffer(200<<10, unix.SO_SNDBUF, unix.SO_SNDBUF))(t)
		c.limit = n - sendOverhead
	}

	limit := c.MaxBatch()
	require.Less(t, limit, 1<<30)
	t.Logf("the limit is %d bytes", limit)
	var b Batch
	fill := func(size int) {
		b.Reset()
		appendTable(&b, 0)
		appendSet(&b)
		rest := func() int { return size - b.Size() }
		for begin := uint32(0); rest() > 200; begin += 1000 {
			appendRange(&b, begin, begin+uint32(min(1000, (rest()-100)/16)))
		}
		appendTable(&b, 0)
		b.Attr(tableUserData, make([]byte, rest()-attrHeaderLen))
		require.Equal(t, size, b.Size())
	}

	fill(limit / 4 * 4)
	require.NoError(t, c.Commit(t.Context(), &b, generation(t, c)), "exactly as large as can be")
	fill(limit/4*4 + 4)
	gen := generation(t, c)
	require.EqualValues(t, 2, gen, "it was applied")
	err := c.Commit(t.Context(), &b, gen)
	require.ErrorIs(t, err, ErrBatchTooLarge)
	var large *TooLargeError
	require.ErrorAs(t, err, &large)
	require.Equal(t, TooLargeError{Size: b.Size(), Limit: limit}, *large)
	require.Equal(t, gen, generation(t, c))

	require.ErrorIs(t, c.sock.Send(make([]byte, limit+1)), unix.EMSGSIZE,
		"the kernel would have refused it")
}

func TestDialTakesTheThreadsNamespace(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	commitNumbers(t, dialIn(t, ns.NetNS()), 1)
	names := make(chan []string)
	go func() {
		defer close(names)
		runtime.LockOSThread() // the thread ends with this goroutine
		if err := unix.Setns(ns.Fd(), unix.CLONE_NEWNET); err != nil {
			t.Errorf("enter the namespace: %v", err)
			return
		}

		c, err := Dial(nil)
		if err != nil {
			t.Errorf("dial: %v", err)
			return
		}

		defer c.Close()
		names <- tables(t, c)
	}()

	require.Equal(t, []string{"t"}, <-names)
}

func TestDialLeavesTheThreadWhereItWas(t *testing.T) {
	t.Parallel()
	ns := newNetNS(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := ok(os.Readlink("/proc/thread-self/ns/net"))(t)
	for range 10 {
		dialIn(t, ns)
	}
	after := ok(os.Readlink("/proc/thread-self/ns/net"))(t)
	require.Equal(t, before, after)
}
