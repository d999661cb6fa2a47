// Package rawnl is the netlink transport of kernlb, for nfnetlink ([Dial]) and for families of
// generic netlink ([DialGeneric]): it frames messages, sends them over a socket and makes sense of
// the answers. It knows nlmsghdr, nfgenmsg, genlmsghdr, attributes, batches, acknowledgements with
// extended text, and dumps. It knows no object of any subsystem: what goes into a set or a rule is
// the business of the packages that append to a [Batch].
//
// # Writing
//
// A [Batch] is an append-only buffer of messages. Reset keeps its memory, so a batch that is used
// again allocates nothing, neither per message nor per attribute:
//
//	b.Message(rawnl.SubsysNFTables, msgNewSetElem, rawnl.FlagCreate, family, 0, obj)
//	b.Text(attrTable, "kernlb")
//	b.Text(attrSet, "endpoints-3")
//	list := b.Nest(attrElements)
//	for … {
//		if b.Room(list) < elementSize { … start the next message … }
//		elem := b.Nest(attrListElem)
//		b.Attr(attrKey, key)
//		b.End(elem)
//	}
//	b.End(list)
//
// Mistakes and overflows stick to the batch: they are reported once, by [Batch.Err] or by the
// method of [Conn] that is given the batch, before anything is sent.
//
// # Sending
//
// [Conn.Commit] sends a batch as one transaction, [Conn.SendAll] sends independent requests one
// after the other in as few system calls as possible, [Conn.Query] sends one request and returns
// its replies, [Conn.Dump] walks a table of the kernel.
//
// Everything in these protocols happens inside the system call that asks for it: when sendmsg
// returns, the kernel has done the work and its answers are in the receive queue, and each part of
// a dump is made by the read of the part before it. So nothing here ever waits for the kernel, and
// there is no poller: reads do not block, and an empty queue means that there are no more answers.
// A context is looked at before each system call and while waiting for another user of the
// connection; a transaction that the kernel has begun cannot be taken back.
//
// # Errors
//
// Each message carries an [Object] that says what it is about. What the kernel refuses comes back
// as an [OpError] with that object, the errno, and the text and attribute offset of the extended
// acknowledgement; where an errno stands for something else in a protocol, an [Explainer] says so.
//
// # Tests
//
// A [Socket] given in [Config] takes the place of the kernel. Package rawnltest has one whose
// answers are made by a function.
package rawnl
