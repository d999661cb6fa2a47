package vmtest

import (
	"fmt"
	"strings"
)

// Release is a kernel series to test on, and the Debian suite that has it.
type Release struct {
	// Name of the series, as used on the command line: "6.12", or "7.x" where the
	// suite moves from one minor version to the next.
	Name string
	// Suite is the codename of the Debian suite.
	Suite string
	// Modules that an administrator has to load on this kernel before IPVS can be used, and that
	// the VM therefore loads at boot. From 6.1 on, ip_vs has an alias for its generic netlink
	// family, so the kernel loads it on first use. 5.10 of bullseye lacks the alias.
	Modules []string
}

// Releases returns the kernels on which kernlb is tested, oldest first.
func Releases() []Release {
	return []Release{
		{Name: "5.10", Suite: "bullseye", Modules: []string{"ip_vs"}},
		{Name: "6.1", Suite: "bookworm"},
		{Name: "6.12", Suite: "trixie"},
		{Name: "7.x", Suite: "sid"},
	}
}

// FindRelease returns the release with that series or suite name. Its error wraps
// [ErrUnknownKernel] and lists the names there are.
func FindRelease(name string) (Release, error) {
	var known []string
	for _, r := range Releases() {
		if name == r.Name || name == r.Suite {
			return r, nil
		}
		known = append(known, r.Name, r.Suite)
	}

	return Release{}, fmt.Errorf("%w %q: known are %s", ErrUnknownKernel, name,
		strings.Join(known, ", "))
}
