// Package vmtest runs programs, mainly Go tests, on other Linux kernels than this machine's. It
// boots Debian's cloud kernels in QEMU, and returns the output and the exit codes of the programs.
// kernlb's tests of IPVS need it, because few machines for development have IPVS. The whole suite
// uses it to cover the kernels from 5.10 on.
//
// # Use
//
// Command kerneltest is the way to run a package's tests on a kernel; the Makefile builds it:
//
//	make test-kernel KERNEL=6.12 PKG=./ipvs
//
// A program calls [Build] for the test binaries and [Run] for one kernel. A test
// knows that it is in the VM by the variable KERNLB_VM=1, and on which series by
// KERNLB_KERNEL.
//
// # What the guest is
//
// The root file system is an initramfs: a static busybox, the kernel's modules for
// networking, the programs of the host that [Options].Tools names with the libraries
// they need, and the test binaries with their testdata. Nothing is on a disk. All
// run as root; modules load themselves on first use, as on a real machine; lo is up,
// and there is no other link. What differs from a real machine: there is no
// systemd, no clock but the emulated one, and all is about ten times slower, so only
// times from one run may be compared.
//
// QEMU's emulation of several processors has an error that tests must keep away from: where the
// kernel rewrites its own code (a static key, such as nft_trace_enabled when the first rule with
// nftrace comes or the last goes), another processor may go on executing the breakpoint that stood
// there for a moment, and the machine stands still. Seen with QEMU 7.2 and Linux 6.1 after some ten
// times. A test binary that traces packets therefore keeps the tracing on from its beginning.
//
// Process 1 is our own, see guestinit. It sends output and exit codes as messages over
// the second serial port, while the kernel writes to the first one: no output of a
// test can be mistaken for a verdict, and no message of the kernel can damage one.
// This is the design of vimto and of hugelgupf/vmtest, without the 9p file system and
// the virtio console that they rely on: not all of Debian's cloud kernels have them.
//
// # Where kernels come from
//
// The script kernel.sh prepares a kernel: apt downloads it from the machine's own sources, with the
// suite's name replaced, and checks Debian's signatures. The packages are unpacked and not
// installed; nothing outside the cache changes. A kernel stays in the cache, which is
// $KERNLB_VM_CACHE or kernlb in the user's cache directory, until it is deleted there. Without a
// mirror that has a suite, $KERNLB_VM_SOURCES/<suite>.sources names one, in the format of
// sources.list(5).
//
// # What the machine needs
//
// Debian or a relative on amd64, the Go toolchain, and the packages apt, dpkg, kmod,
// qemu-system-x86, xz-utils, and for the tools of kerneltest ipvsadm, nftables,
// iptables, conntrack, iproute2 and busybox-static. What is missing is named by a [*MissingError].
package vmtest
