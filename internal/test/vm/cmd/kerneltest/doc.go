// Command kerneltest runs the tests of Go packages on the kernels that kernlb
// supports: it boots each in QEMU and runs the compiled tests there, as root.
//
//	kerneltest [flags] packages [-- arguments of the test binaries]
//	kerneltest -kernel 6.12 ./ipvs
//	kerneltest -kernel all -run TestConformance ./ipvs ./nftables
//	kerneltest ./ipvs -- -test.bench=. -test.benchtime=10x
//
// It is built together with the guest's init program, which it expects in its own directory:
//
//	go build -C internal/test/vm -o "$PWD/bin/" ./cmd/...
//	bin/kerneltest -kernel 6.12 ./ipvs
//
// Kernels come from Debian's mirrors as the machine's own apt sources name them;
// package vmtest says how, and what the machine needs.
//
// The tests' output goes to standard output immediately, or, with -quiet, only if something went
// wrong. A line for each kernel and package follows. The exit code is
//
//	0  all tests passed on all kernels
//	1  tests failed, or did not run that -need asks for
//	2  the command line is wrong, no test matches -run, or the tests do not compile
//	3  a VM went wrong: the kernel panicked, hung, or ended without a verdict
//	4  the machine lacks something; the message says what and what brings it
//
// and the highest of them when kernels differ.
package main
