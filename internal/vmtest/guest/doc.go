// Package guest is what the host and the init program inside the VM share: the
// plan that travels in, and the frames that travel out.
//
// The plan is a JSON file in the initramfs. The frames go over a serial port of
// their own. Test output is the payload of frames, so nothing a test prints can
// look like a verdict; and the kernel's messages go to another port, so they
// cannot end up in the middle of one.
package guest
