package guest

// Paths in the guest.
const (
	// PlanPath is the file that holds the [Plan], as JSON.
	PlanPath = "/vmtest/plan.json"
	// Port is the serial port that carries the messages; the kernel's console is
	// the one before it.
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
