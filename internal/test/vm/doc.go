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
// # The guest
//
// The root file system is an initramfs: a static busybox, the kernel's modules for networking, the
// programs of the host that [Options].Tools names with their libraries, and the test binaries with
// their testdata. Nothing is on a disk. All programs run as root. Modules load themselves on first
// use, as on a real machine. lo is up, and there is no other link. Unlike a real machine, the guest
// has no systemd, and only an emulated clock. It is about ten times slower, so only times from one
// run may be compared.
//
// QEMU's emulation of several processors has an error that tests must avoid. The kernel sometimes
// rewrites its own code, for example for a static key such as nft_trace_enabled when the first rule
// with nftrace is added or the last is removed. For a moment a breakpoint is in the code. Another
// processor may keep executing that breakpoint, and the machine hangs. This was seen with QEMU 7.2
// and Linux 6.1 after some ten rewrites. So a test binary that traces packets enables tracing at
// its start and keeps it enabled.
//
// Process 1 is our own, see guestinit. It sends output and exit codes as messages over the second
// serial port, while the kernel writes to the first one. So no output of a test can be mistaken for
// a verdict, and no message of the kernel can damage a verdict. vimto and hugelgupf/vmtest have the
// same design, but rely on a 9p file system and a virtio console, which not all of Debian's cloud
// kernels have.
//
// # Kernels
//
// The script kernel.sh prepares a kernel: apt downloads it from the machine's own sources, with the
// suite's name replaced, and checks Debian's signatures. The packages are unpacked and not
// installed; nothing outside the cache changes. A kernel stays in the cache, which is
// $KERNLB_VM_CACHE or kernlb in the user's cache directory, until it is deleted there. Without a
// mirror that has a suite, $KERNLB_VM_SOURCES/<suite>.sources names one, in the format of
// sources.list(5).
//
// # Requirements
//
// Debian or a relative on amd64, the Go toolchain, and the packages apt, dpkg, kmod,
// qemu-system-x86, xz-utils, and for the tools of kerneltest ipvsadm, nftables, iptables,
// conntrack, iproute2 and busybox-static. An [ErrMissing] names anything that is missing.
package vmtest
