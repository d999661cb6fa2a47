package nftables

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

// nftPrograms are the nft programs that check our tables: the installed program, and the programs
// in KERNLB_NFT, separated by colons.
func nftPrograms(t *testing.T) []string {
	var l []string
	if p, err := exec.LookPath("nft"); err == nil {
		l = append(l, p)
	}
	for _, p := range strings.Split(os.Getenv("KERNLB_NFT"), ":") {
		if p != "" {
			l = append(l, p)
		}
	}

	if len(l) == 0 {
		t.Skip("nft is not installed (Debian package nftables)")
	}
	return l
}

// runNft runs an nft program in a namespace.
func runNft(t *testing.T, ns *netnstest.NS, program, stdin string, args ...string) string {
	t.Helper()
	return nstest.Exec(t, ns, stdin, append([]string{program}, args...)...)
}

// newNS creates an empty namespace and a backend in it.
func newNS(t testing.TB) (*netnstest.NS, *backend) {
	t.Helper()
	ns := nstest.New(t)
	return ns, newBackend(t, ns, nil)
}

func newBackend(t testing.TB, ns *netnstest.NS, cfg *Config) *backend {
	t.Helper()
	if cfg == nil {
		cfg = &Config{}
	}
	var b *backend
	require.NoError(t, ns.Do(func() (err error) {
		b, err = openBackend(cfg)
		return err
	}))

	t.Cleanup(func() { b.Close() })
	return b
}

// byHand commits the messages of do to the table of a family.
func byHand(t *testing.T, b *backend, f *nft.Family, do func(e *nft.Encoder)) error {
	t.Helper()
	var batch rawnl.Batch
	do(nft.NewEncoder(&batch, f, defaultTable))
	return b.kernel.reader.Conn.Commit(t.Context(), &batch, 0)
}

// listOf returns a list of elements.
func listOf(elems ...nft.Elem) *nft.ElemList {
	l := &nft.ElemList{}
	for _, e := range elems {
		l.Add(e)
	}
	return l
}

// addTo adds an element to a set of the table of IPv4.
func addTo(t *testing.T, b *backend, set string, e nft.Elem) error {
	t.Helper()
	return byHand(t, b, nft.IPv4, func(enc *nft.Encoder) {
		enc.Elements(nft.Add, &nft.Set{Name: set}, listOf(e))
	})
}

// dial gives a backend a different connection for everything except half of its questions.
func dial(t *testing.T, b *backend, c *rawnl.Config) {
	t.Helper()
	conn := ok(rawnl.Dial(c))(t)
	require.NoError(t, b.kernel.reader.Conn.Close())
	b.kernel.reader.Conn, b.kernel.reader.Queriers[0].Conn = conn, conn
	b.kernel.room = conn.MaxBatch() / 2
}
