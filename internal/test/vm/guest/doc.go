// Package guest is what the host and the init program inside the VM share: the plan that travels
// in, and the messages that travel out.
//
// The plan is a JSON file in the initramfs. The messages go over a serial port of their own. What
// a test prints is inside of a message, so it cannot look like a verdict. The kernel's messages
// go to another port, so they cannot end up in the middle of one of ours.
package guest
