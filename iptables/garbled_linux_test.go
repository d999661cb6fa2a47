package iptables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rawnl/rawnltest"
)

// What is not understood is never taken for something that is not there.
func TestGarbledAnswersAreErrors(t *testing.T) {
	t.Parallel()
	for _, c := range failing {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b, ns, _ := opened(t, Config{})
			require.NoError(t, b.kernel.conn.Close())
			tap := &rawnltest.Tap{}
			var err error
			b.kernel.conn, err = rawnl.Dial(&rawnl.Config{NetNS: ns.Fd(),
				Wrap: func(s rawnl.Socket) rawnl.Socket { return tap.Wrap(s) }})
			require.NoError(t, err)
			b.kernel.reader = newReader(b.kernel.conn)
			const getTable = uint16(rawnl.SubsysNFTables)<<8 | uint16(nft.MsgGetTable)
			rawnltest.GarbleEach(t, c.name, tap, func() error {
				answer := tap.Answer
				tap.Answer = nil
				c.prepare(t, b, ns)
				tap.Answer = answer
				return c.run(t.Context(), t, b)
			}, getTable) // that a table is there is all that is asked
		})
	}
}
