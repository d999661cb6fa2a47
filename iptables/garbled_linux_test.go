package iptables

import (
	"testing"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

// An answer that cannot be decoded never counts as a missing object.
func TestGarbledAnswersAreErrors(t *testing.T) {
	t.Parallel()
	for _, c := range failing {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, ns, _ := opened(t, Config{})
			b, tap := tapped(t, ns)
			const getTable = uint16(rawnl.SubsysNFTables)<<8 | uint16(nft.MsgGetTable)
			rawnltest.GarbleEach(t, c.name, tap, func() error {
				answer := tap.Answer
				tap.Answer = nil
				c.prepare(t, b, ns)
				tap.Answer = answer
				return c.run(t.Context(), t, b)
			}, getTable) // this only asks whether the table exists
		})
	}
}
