package rawnl_test

import (
	"fmt"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// A batch is written attribute by attribute and read back with an iterator.
func Example() {
	const (
		newSet    = 9 // NFT_MSG_NEWSET
		attrTable = 1 // NFTA_SET_TABLE
		attrName  = 2 // NFTA_SET_NAME
		attrDesc  = 9 // NFTA_SET_DESC
		attrSize  = 1 // NFTA_SET_DESC_SIZE
	)
	var b rawnl.Batch
	b.Message(rawnl.SubsysNFTables, newSet, rawnl.FlagCreate, 2, 0,
		rawnl.Object{Verb: "add", Kind: "set", Name: "services"})
	b.Text(attrTable, "kernlb")
	b.Text(attrName, "services")
	desc := b.Nest(attrDesc)
	b.U32(attrSize, 65536)
	b.End(desc)
	fmt.Println(b.Len(), "message of", b.MessageLen(), "bytes, error:", b.Err())

	it := rawnl.Attrs(b.Bytes()[20:]) // after the headers
	for it.Next() {
		switch it.Type() {
		case attrTable, attrName:
			fmt.Println(it.Type(), it.Text())
		case attrDesc:
			inner := it.Nest()
			for inner.Next() {
				fmt.Println(it.Type(), inner.Type(), inner.U32())
			}
		}
	}
	fmt.Println(it.Err())
	// Output:
	// 1 message of 60 bytes, error: <nil>
	// 1 kernlb
	// 2 services
	// 9 1 65536
	// <nil>
}

// An object says in an error what the kernel refused.
func ExampleObject() {
	fmt.Println(rawnl.Object{Verb: "add", Kind: "map", Name: "endpoints-3",
		Within: "table ip kernlb"})
	// Output: map endpoints-3 of table ip kernlb
}
