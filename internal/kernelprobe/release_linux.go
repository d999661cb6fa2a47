package kernelprobe

import "golang.org/x/sys/unix"

// Running returns the release of the running kernel.
func Running() Release {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return Release{}
	}
	return ParseRelease(unix.ByteSliceToString(u.Release[:]))
}
