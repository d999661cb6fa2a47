// Package kernelprobe is what the backends share in asking a kernel whether it supports them:
// changes to ask about, and what its refusals mean.
//
// A backend that writes nf_tables renders [Changes] as it would to commit them, and has the kernel
// check the transaction without its taking place ([rawnl.Conn.Check]). So the kernel is asked about
// what the backend really sends, and the answer needs no table of kernel versions.
package kernelprobe
