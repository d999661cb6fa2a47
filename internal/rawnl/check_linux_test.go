package rawnl

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestKernelChecksWithoutDoing(t *testing.T) {
	t.Parallel()
	c := dialNew(t)
	before := ok(c.GenID(t.Context()))(t)
	var b Batch
	appendTable(&b, 0)
	appendSet(&b)
	appendRange(&b, 0, 100)
	require.NoError(t, c.Check(t.Context(), &b))
	after := ok(c.GenID(t.Context()))(t)
	require.Equal(t, before.ID, after.ID)
	b.Message(SubsysNFTables, unix.NFT_MSG_DELTABLE, 0, familyIPv4, 0,
		Object{Verb: "delete", Kind: "table", Name: "ip none"})
	b.Text(unix.NFTA_TABLE_NAME, "none")
	require.ErrorIs(t, c.Check(t.Context(), &b), unix.ENOENT)
	b.Reset()
	appendTable(&b, FlagExcl)
	require.NoError(t, c.Commit(t.Context(), &b, before.ID), "the table is not there")
}
