// Package rendering has code that the backends share. It encodes a frontend as a comment for the
// kernel, and the rules of a node as lines of settings. It commits a change set that is too large
// for one transaction in parts.
//
// To probe a kernel, a backend that writes nf_tables renders [Changes] as for a commit, and lets
// the kernel check the transaction without committing it ([rawnl.Conn.Check]). So the kernel checks
// exactly the messages that the backend sends, and the backend needs no table of kernel versions.
package rendering
