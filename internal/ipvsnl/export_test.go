package ipvsnl

import "github.com/kernlb/kernlb/internal/rawnl"

// What the tests in package ipvsnl_test see of this one: they use ipvsfake, which imports it.
var (
	ParseServiceReply     = parseServiceReply
	ParseDestinationReply = parseDestinationReply
	ParseInfo             = parseInfo
	PutServiceKey         = putServiceKey
	PutDestinationKey     = putDestinationKey
)

const (
	DumpAttempts = dumpAttempts
	HeadersLen   = headersLen
	AllFlags     = allFlags
)

// NoPrefix is the IPv6 netmask of no bits, which the kernel refuses.
var NoPrefix = Netmask{ignored: 128}

// Conn returns the connection of a client.
func (c *Client) Conn() *rawnl.Conn { return c.conn }

// Wire returns the messages of a batch.
func (b *Batch) Wire() *rawnl.Batch { return &b.wire }

// Raw adds a command without looking at what put appends.
func (b *Batch) Raw(cmd Command, put func(b *rawnl.Batch)) {
	begin(&b.wire, cmd)
	put(&b.wire)
}
