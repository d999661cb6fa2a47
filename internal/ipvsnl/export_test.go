package ipvsnl

import "github.com/kernlb/kernlb/internal/rawnl"

// Names of this package for the tests in package ipvsnl_test. These tests use ipvsfake, which
// imports this package.
var (
	ParseServiceReply     = parseServiceReply
	ParseDestinationReply = parseDestinationReply
)

const (
	DumpAttempts = dumpAttempts
	Window       = window
)

// Wire returns the message of a command, without its headers.
func (o Op) Wire() []byte {
	var b rawnl.Batch
	o.put(&b)
	return b.Bytes()[20:]
}
