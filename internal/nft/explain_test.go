package nft

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// transaction adds a base chain of type nat, and a rule with the expressions lookup and numgen. at
// is the offset of the numgen expression in its message.
func transaction() (b *rawnl.Batch, at int) {
	b = &rawnl.Batch{}
	b.Message(rawnl.SubsysNFTables, MsgNewChain, 0, 2, 0, rawnl.Object{Verb: "add", Kind: "chain",
		Name: "c"})
	b.Text(attrChainType, "nat")
	b.Message(rawnl.SubsysNFTables, MsgNewRule, 0, 10, 0, rawnl.Object{Verb: "add", Kind: "rule"})
	exprs := b.Nest(attrRuleExpressions)
	for _, name := range []string{"lookup", "numgen"} {
		at = len(b.At(b.Len() - 1))
		e := b.Nest(1)
		b.Text(exprName, name)
		b.End(e)
	}

	b.End(exprs)
	return b, at
}

var (
	now, old = Release{6, 1}, Release{4, 19}
	_, at    = transaction()
)

// refused is the kernel's refusal of a message, pointing to one of its attributes.
func refused(index int, errno syscall.Errno, offset int) error {
	return fmt.Errorf("check: %w", &rawnl.OpError{Op: "add", Object: "x", Index: index,
		Errno: errno, Offset: offset})
}

// reasons are errors of the kernel, with their explanations.
var reasons = []struct {
	name     string
	err      error
	running  Release
	want     string
	sentinel error
}{
	{"not permitted", refused(-1, syscall.EPERM, 0), now,
		"no permission: it takes CAP_NET_ADMIN in the user namespace that owns the network " +
			"namespace",
		kernelerr.ErrNoPermission},
	{"not permitted, as the standard library says it", fs.ErrPermission, now, "no permission",
		kernelerr.ErrNoPermission},
	{"no netfilter at all", fmt.Errorf("socket: %w", syscall.EPROTONOSUPPORT), now,
		"missing module nfnetlink", kernelerr.ErrMissingModule},
	{"no nf_tables", refused(-1, syscall.EOPNOTSUPP, 0), now, "missing module nf_tables",
		kernelerr.ErrMissingModule},
	{"no type of chain", refused(0, syscall.ENOENT, 0), now, "missing module nft_chain_nat",
		kernelerr.ErrMissingModule},
	{"no expression", refused(1, syscall.ENOENT, at), now, "missing module nft_numgen",
		kernelerr.ErrMissingModule},
	{"the kernel points nowhere", refused(1, syscall.ENOENT, 0), now,
		"missing module, or an option", kernelerr.ErrMissingModule},
	{"it points out of the message", refused(1, syscall.ENOENT, 1<<20), now,
		"missing module, or an option", kernelerr.ErrMissingModule},
	{"a message that was not sent", refused(7, syscall.ENOENT, 0), now,
		"missing module, or an option", kernelerr.ErrMissingModule},
	{"an old kernel", refused(1, syscall.EINVAL, at), old,
		"kernel too old: it is Linux 4.19, and 5.10 is the oldest", kernelerr.ErrKernelTooOld},
	{"an old kernel that refuses for want of permission", refused(1, syscall.EPERM, at), old,
		"no permission", kernelerr.ErrNoPermission},
	{"a kernel of unknown age", refused(1, syscall.EINVAL, at), Release{}, "missing module, or",
		kernelerr.ErrMissingModule},
	{"no such network namespace", &fs.PathError{Op: "open", Path: "/run/netns/x",
		Err: syscall.ENOENT}, now, "open /run/netns/x: no such file", fs.ErrNotExist},
	{"what it means is not known", syscall.ENOMEM, old, "cannot allocate memory",
		syscall.ENOMEM},
}

func TestReasons(t *testing.T) {
	t.Parallel()
	for _, tt := range reasons {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b, _ := transaction() // each goroutine needs its own batch
			err := Explain(tt.err, b, tt.running)
			require.ErrorIs(t, err, tt.sentinel)
			require.ErrorIs(t, err, tt.err)
			require.ErrorContains(t, err, tt.want)
			require.Error(t, Explain(tt.err, nil, tt.running), "without the transaction")
			require.Equal(t, tt.sentinel == kernelerr.ErrMissingModule,
				errors.Is(err, kernelerr.ErrMissingModule))
		})
	}

	b, _ := transaction()
	require.NoError(t, Explain(nil, b, now))
}

func TestExpressionsAndTheirModules(t *testing.T) {
	t.Parallel()
	for _, tt := range [][4]string{
		{"numgen", "", "ipv4", "nft_numgen"}, {"fib", "", "ipv6", "nft_fib_ipv6"},
		{"reject", "", "ipv4", "nft_reject_ipv4"},
		{"match", "statistic", "ipv4", "xt_statistic"}, {"target", "", "ipv4", "nft_compat"},
		{"", "", "ipv4", ""},
		{"lookup", "", "ipv4", ""}, {"immediate", "", "ipv6", ""},
	} {
		require.Equal(t, tt[3], expression(tt[0], tt[1], tt[2]))
	}
}

func TestObjectsThatAreThereAreNoRefusal(t *testing.T) {
	t.Parallel()
	b, _ := transaction()
	now := Release{6, 1}
	there, denied := &rawnl.OpError{Errno: syscall.EEXIST}, &rawnl.OpError{Errno: syscall.EPERM}
	require.NoError(t, Explain(there, b, now))
	require.NoError(t, Explain(rawnl.OpErrors{there, there}, b, now))
	err := Explain(rawnl.OpErrors{there, denied, there}, b, now)
	require.ErrorIs(t, err, kernelerr.ErrNoPermission)
	require.NotErrorIs(t, err, syscall.EEXIST)
	other := errors.New("socket")
	require.Equal(t, other, Explain(other, b, now))
}

func TestReleases(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]Release{
		"6.1.0-56-cloud-amd64": {6, 1}, "5.10.0": {5, 10}, "7.2+deb14": {7, 2}, "4.19": {4, 19},
		"": {}, "x.y": {}, "6": {}, "-1.2": {},
	} {
		require.Equal(t, want, parseRelease(s), s)
	}

	require.Negative(t, Release{5, 9}.compare(oldest))
	require.Negative(t, Release{4, 19}.compare(oldest))
	require.Positive(t, Release{6, 1}.compare(oldest))
	require.NotEqual(t, Release{}, Running(), "/proc tells it")
	require.Equal(t, "5.10", oldest.String())
}

func FuzzModule(f *testing.F) {
	b, at := transaction()
	f.Add(b.Bytes(), at)
	f.Fuzz(func(_ *testing.T, msg []byte, offset int) { module(msg, offset) })
}

// An object that another program has deleted is no missing module.
func TestWhatIsGoneIsNoModule(t *testing.T) {
	t.Parallel()
	b := &rawnl.Batch{}
	b.Message(rawnl.SubsysNFTables, MsgNewChain, 0, 2, 0, rawnl.Object{Verb: "add", Kind: "chain"})
	table := len(b.At(b.Len() - 1))
	b.Text(AttrChainTable, "gone")
	b.Text(attrChainType, "nat")
	b.Message(rawnl.SubsysNFTables, MsgNewRule, 0, 2, 0, rawnl.Object{Verb: "add", Kind: "rule"})
	exprs := b.Nest(attrRuleExpressions)
	set := len(b.At(b.Len() - 1))
	e := b.Nest(1)
	b.Text(exprName, "lookup")
	b.End(e)
	b.End(exprs)
	require.NoError(t, Missing(refused(0, syscall.ENOENT, table), b))
	require.NoError(t, Missing(refused(1, syscall.ENOENT, set), b))
	require.ErrorIs(t, Missing(refused(0, syscall.ENOENT, 0), b), kernelerr.ErrMissingModule)
}
