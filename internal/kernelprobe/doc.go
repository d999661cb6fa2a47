// Package kernelprobe asks a kernel whether it supports a backend. It has changes to ask about, and
// the meaning of the kernel's refusals.
//
// A backend that writes nf_tables renders [Changes] as for a commit, and lets the kernel check the
// transaction without committing it ([rawnl.Conn.Check]). So the kernel judges the very messages
// that the backend sends, and the backend needs no table of kernel versions.
package kernelprobe
