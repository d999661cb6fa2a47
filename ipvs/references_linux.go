package ipvs

import (
	"bytes"
	"os"
	"strconv"

	"github.com/kernlb/kernlb/internal/ipvsnl"
)

// references is the number of references to the kernel's module ip_vs. Each virtual server holds
// one, in any family and namespace (ip_vs_add_service, ip_vs_use_count_inc). So reading one file
// shows that some were deleted. The modules of schedulers hold others, and so does a dump while it
// lasts.
type references struct {
	file  string
	known int // the number when the virtual servers were last known
}

// referencesFile has the number. It does not exist if IPVS is built into the kernel.
const referencesFile = "/sys/module/ip_vs/refcnt"

// read returns the number, 0 if it is not known.
func (r *references) read() int {
	b, err := os.ReadFile(r.file)
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(string(bytes.TrimSpace(b)))
	return n
}

// fewer reports whether there are fewer references than before, and notes the new number.
// Additional ones are not ours.
func (r *references) fewer() bool {
	before := r.known
	r.known = r.read()
	return 0 < r.known && r.known < before
}

// sent adjusts the known number by the effect of commands.
func (r *references) sent(ops []op) {
	for _, o := range ops {
		switch o.cmd {
		case ipvsnl.CommandNewService:
			r.known++
		case ipvsnl.CommandDelService:
			r.known--
		}
	}
}
