package ipvsnl

import "github.com/kernlb/kernlb/internal/rawnl"

// Names of this package for the tests in package ipvsnl_test. These tests use ipvsfake, which
// imports this package.
var (
	ParseServiceReply     = parseServiceReply
	ParseDestinationReply = parseDestinationReply
	PutServiceKey         = putServiceKey
	PutDestinationKey     = putDestinationKey
)

const (
	DumpAttempts = dumpAttempts
	HeadersLen   = headersLen
	Window       = window
)

// Wire returns the messages of a batch.
func (b *Batch) Wire() *rawnl.Batch { return &b.wire }

// Raw adds a command with any attributes.
func (b *Batch) Raw(cmd Command, put func(b *rawnl.Batch)) {
	begin(&b.wire, cmd)
	put(&b.wire)
}
