// Package guest has the types that the host shares with the init program inside the VM: the plan,
// which the host sends, and the messages, which init sends
// encoded by package gob.
//
// The plan is a JSON file in the initramfs. The messages go over a serial port of their own. The
// output of a test is inside a message, so it cannot look like a verdict. The kernel's messages go
// to another port, so they cannot come between ours.
package guest

import "time"

// Message is one message from init to the host. One of the fields is set. A run sends one Ready,
// then for each program any number of Output and one Exit, and then Done. Fatal may come instead of
// any of these, and is then the last one.
type Message struct {
	// Ready says that init runs. It is the kernel's release, as in uname -r.
	Ready string
	// Output is a piece of the running program's output, cut anywhere.
	Output []byte
	// Exit says that the program ended.
	Exit *Exit
	// Done says that all programs have run, and that the guest powers off.
	Done bool
	// Fatal is the reason why init cannot continue.
	Fatal string
}

// Exit is the end of a program.
type Exit struct {
	// Code is the exit code, or 128 plus the number of the signal that ended the program, as a
	// shell reports it.
	Code int
	// Duration is the time that the program ran, by the guest's clock.
	Duration time.Duration
}

// Paths in the guest.
const (
	// PlanPath is the file that holds the [Plan], as JSON.
	PlanPath = "/vmtest/plan.json"
	// Port is the serial port that carries the messages; the kernel's console is the previous port.
	Port = "/dev/ttyS1"
)

// Plan lists the work of the guest.
type Plan struct {
	// Modules are loaded with modprobe before the first program; modules that
	// load themselves on first use need not be named.
	Modules []string `json:"modules,omitempty"`
	// Programs run one after another. A failure does not stop the rest.
	Programs []Program `json:"programs"`
}

// Program is one command for the guest.
type Program struct {
	// Path of the executable in the guest.
	Path string `json:"path"`
	// Args after the program's name.
	Args []string `json:"args,omitempty"`
	// Dir is the working directory.
	Dir string `json:"dir"`
	// Env are "name=value" pairs, added to PATH, HOME and TMPDIR.
	Env []string `json:"env,omitempty"`
}
