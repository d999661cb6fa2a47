// Package version returns the version of a program.
package version

import (
	"runtime/debug"
	"slices"
)

// Of returns a line with the program's name, the version of the module, the commit, and the version
// of Go, as far as they are known.
func Of(program string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return program + " of an unknown version"
	}
	text := program + " " + info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			text += ", commit " + s.Value
		}
	}

	return text + ", " + info.GoVersion
}

// Asked reports whether a command line asks for the version.
func Asked(args []string) bool {
	return len(args) > 0 && slices.Contains([]string{"version", "-version", "--version"}, args[0])
}
