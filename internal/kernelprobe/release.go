package kernelprobe

import (
	"fmt"
	"strconv"
	"strings"
)

// Release is a kernel's major and minor version. The zero Release means that it is not known.
type Release struct{ Major, Minor int }

// ParseRelease reads the output of uname -r, such as "6.1.0-56-cloud-amd64". It returns the zero
// Release for any other text.
func ParseRelease(s string) Release {
	major, rest, _ := strings.Cut(s, ".")
	if i := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		rest = rest[:i]
	}
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(rest)
	if err1 != nil || err2 != nil || a < 0 {
		return Release{}
	}
	return Release{a, b}
}

// Less reports whether r is older than o.
func (r Release) Less(o Release) bool {
	return r.Major < o.Major || r.Major == o.Major && r.Minor < o.Minor
}

// String returns "5.10".
func (r Release) String() string { return fmt.Sprintf("%d.%d", r.Major, r.Minor) }

func (r Release) known() bool { return r != Release{} }
