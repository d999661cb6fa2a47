// Package dataplane applies desired states to a kernel through a backend.
//
// The [Engine] drives the one pipeline of kernlb: it resolves a state, compares it with what the kernel holds, and hands the
// difference to a [Backend], which writes it. It reads the kernel back when it starts, when somebody else changed something, and after an
// error, so that what it compares with is what is really there.
//
//	State ─resolve─► Table ─diff─► ChangeSet ─► Backend ─► kernel
//	                   ▲                                     │
//	                   └──────────────── observe ◄───────────┘
package dataplane
