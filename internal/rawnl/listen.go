package rawnl

import "golang.org/x/net/bpf"

// Errors of [Listener] when there is no message to return.
var (
	ErrEmpty    error = errEmpty   // no message waits
	ErrOverflow error = errOverrun // the kernel had more messages than the queue had room for
)

// ListenConfig says what a [Listener] receives.
type ListenConfig struct {
	// Groups are the multicast groups (NFNLGRP_*, include/uapi/linux/netfilter/nfnetlink.h).
	Groups []uint32
	// Filter is a program of classic BPF for the messages; without one, all are received. A message
	// that it drops needs no room in the queue and wakes up no thread.
	Filter []bpf.RawInstruction
	// Buffer is the size of the queue in bytes. The kernel doubles it. Without CAP_NET_ADMIN in the
	// initial user namespace, it is net.core.rmem_max at most.
	Buffer int
}
