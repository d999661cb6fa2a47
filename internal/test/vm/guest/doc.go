// Package guest has the types that the host shares with the init program inside the VM: the plan,
// which the host sends, and the messages, which init sends.
//
// The plan is a JSON file in the initramfs. The messages go over a serial port of their own. The
// output of a test is inside a message, so it cannot look like a verdict. The kernel's messages go
// to another port, so they cannot come between ours.
package guest
