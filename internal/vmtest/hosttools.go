package vmtest

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// toolPlugins are files that a tool loads while it runs, so that its headers do
// not name them: what iptables, and nft when it lists iptables' rules, know of
// matches and targets.
var toolPlugins = map[string][]string{
	"nft":    {"/usr/lib/*/xtables/*.so"},
	"xtable": {"/usr/lib/*/xtables/*.so"},
}

// commonFiles are small databases that tools read for names; those the machine
// has are taken along.
var commonFiles = []string{"/etc/protocols", "/etc/services"}

// hostFile is a file of the host that is needed in the guest, at the same path.
type hostFile struct {
	// Path has no symbolic link in its directory.
	Path string
	// Target is set for a symbolic link.
	Target string
	Info   os.FileInfo
}

// hostFiles gathers files, by path, with everything they need to run.
type hostFiles map[string]hostFile

// collectTools finds the named programs of the host (or paths of programs) with
// their symbolic links, interpreters, shared libraries and plugins. The error
// wraps [ErrMissing] for one that the host does not have.
func collectTools(ctx context.Context, tools []string) ([]hostFile, error) {
	h := make(hostFiles)
	for _, t := range tools {
		path, err := findProgram(t)
		if err != nil {
			return nil, fmt.Errorf("collect tools for the guest: %w", err)
		}
		if err := h.add(path); err != nil {
			return nil, fmt.Errorf("collect the tool %s for the guest: %w", t, err)
		}
	}
	for _, pattern := range h.plugins() {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("collect plugins %s: %w", pattern, err)
		}
		for _, p := range found {
			if err := h.add(p); err != nil {
				return nil, fmt.Errorf("collect plugins for the guest: %w", err)
			}
		}
	}
	for _, p := range commonFiles {
		if err := h.add(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("collect files for the guest: %w", err)
		}
	}
	if err := h.addLibraries(ctx); err != nil {
		return nil, err
	}
	return slices.SortedFunc(maps.Values(h), func(a, b hostFile) int {
		return strings.Compare(a.Path, b.Path)
	}), nil
}

// plugins returns the patterns of plugins for the programs gathered so far.
func (h hostFiles) plugins() []string {
	var out []string
	for path := range h {
		for prefix, patterns := range toolPlugins {
			if strings.HasPrefix(filepath.Base(path), prefix) {
				out = append(out, patterns...)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// add takes a file and every symbolic link on the way to it.
func (h hostFiles) add(path string) error {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return err
	}
	path = filepath.Join(dir, filepath.Base(path))
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	f := hostFile{Path: path, Info: info}
	if info.Mode()&os.ModeSymlink == 0 {
		h[path] = f
		return nil
	}
	if f.Target, err = os.Readlink(path); err != nil {
		return err
	}
	h[path] = f
	if filepath.IsAbs(f.Target) {
		return h.add(f.Target)
	}
	return h.add(filepath.Join(dir, f.Target))
}

// addLibraries takes the shared libraries and interpreters of all files gathered so far.
func (h hostFiles) addLibraries(ctx context.Context) error {
	var dynamic []string
	for path, f := range h {
		if f.Target == "" && linked(path) {
			dynamic = append(dynamic, path)
		}
	}
	if len(dynamic) == 0 {
		return nil
	}
	text, err := command{Name: "ldd", Args: dynamic}.output(ctx)
	if err != nil {
		return fmt.Errorf("collect libraries for the guest: %w", err)
	}
	for line := range strings.Lines(text) {
		path, err := libraryOf(line)
		if err != nil {
			return fmt.Errorf("collect libraries for the guest: %w", err)
		}
		if path == "" {
			continue
		}
		if err := h.add(path); err != nil {
			return fmt.Errorf("collect libraries for the guest: %w", err)
		}
	}
	return nil
}

// libraryOf returns the library that a line of ldd(1) names, "" for none:
//
//	linux-vdso.so.1 (0x00007ffd7a3d1000)
//	libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f5c1a000000)
//	/lib64/ld-linux-x86-64.so.2 (0x00007f5c1a2f5000)
func libraryOf(line string) (string, error) {
	name, path, found := strings.Cut(strings.TrimSpace(line), " => ")
	if !found {
		name, path = "", name
	}
	path, _, _ = strings.Cut(path, " (0x")
	switch {
	case path == "not found":
		return "", &MissingError{What: "the shared library " + name}
	case filepath.IsAbs(path) && !strings.HasSuffix(path, ":"):
		return path, nil
	}
	return "", nil
}

// linked reports whether a file is ELF and linked with shared libraries.
func linked(path string) bool {
	libraries, err := importedLibraries(path)
	return err == nil && len(libraries) > 0
}

// static reports whether a file is ELF and needs no shared library.
func static(path string) bool {
	libraries, err := importedLibraries(path)
	return err == nil && len(libraries) == 0
}

// importedLibraries returns the libraries that the header of an ELF file names.
func importedLibraries(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ImportedLibraries()
}
