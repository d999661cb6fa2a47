// Package rawnl is the netlink transport of kernlb, for nfnetlink ([Dial]) and for families of
// generic netlink ([DialGeneric]). It frames messages, sends them over a socket and interprets the
// answers. It handles nlmsghdr, nfgenmsg, genlmsghdr, attributes, batches, acknowledgements with
// extended text, and dumps. It knows no objects of any subsystem: sets and rules are the business
// of the packages that append to a [Batch].
//
// # Writing
//
// A [Batch] is an append-only buffer of messages. Reset keeps its memory, so a reused batch
// allocates nothing, neither per message nor per attribute:
//
//	b.Message(rawnl.SubsysNFTables, msgNewSetElem, rawnl.FlagCreate, family, 0, obj)
//	b.Text(attrTable, "kernlb")
//	b.Text(attrSet, "endpoints-3")
//	list := b.Nest(attrElements)
//	for … {
//		elem := b.Nest(attrListElem)
//		b.Attr(attrKey, key)
//		b.End(elem)
//	}
//	b.End(list)
//
// A batch remembers its first mistake or overflow. [Batch.Err], or the method of [Conn] that
// receives the batch, reports it before anything is sent.
//
// # Sending
//
// [Conn.Commit] sends a batch as one transaction. [Conn.SendAll] sends independent requests one
// after another in as few system calls as possible. [Conn.Query] sends one request and returns its
// replies. [Conn.Dump] walks a table of the kernel.
//
// The kernel does all work of these protocols inside the requesting system call. When sendmsg
// returns, the work is done and the answers are in the receive queue. The kernel generates each
// part of a dump while the previous part is read. So the package never waits for the kernel and
// needs no poller: reads do not block, and an empty queue means that there are no more answers. The
// methods check the context before each system call and while they wait for another user of the
// connection. A transaction that the kernel has begun cannot be undone.
//
// # Errors
//
// Each message carries an [Object] that names its subject. If the kernel refuses the message, the
// error is an [OpError] with that object, the errno, and the text and attribute offset of the
// extended acknowledgement. In some protocols an errno has a different meaning; an [Explainer] then
// supplies this meaning.
//
// # Tests
//
// A [Socket] in [Config] replaces the kernel. Package rawnltest has a socket whose answers come
// from a function.
package rawnl
