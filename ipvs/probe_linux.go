package ipvs

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
)

// noModule says that the kernel lacks a module, or how to load it: before Linux 5.16, ip_vs does
// not declare its family, so a process without CAP_SYS_MODULE cannot make the kernel load it.
func noModule(module string, err error) error {
	if installed(module) {
		return fmt.Errorf(
			"%w %s: it is installed but not loaded, and this process cannot have it loaded: load "+
				"module %s (modprobe %s): %w",
			dataplane.ErrMissingModule, module, module, module, err)
	}
	return fmt.Errorf("%w %s: %w", dataplane.ErrMissingModule, module, err)
}

// installed reports whether the running kernel has a module's file, as far as this process can see
// it. In a container it often sees none.
func installed(module string) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	list, err := os.ReadFile("/lib/modules/" + unix.ByteSliceToString(u.Release[:]) +
		"/modules.dep")
	return err == nil && bytes.Contains(list, []byte("/"+module+".ko"))
}
