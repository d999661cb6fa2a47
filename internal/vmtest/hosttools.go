package vmtest

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
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

// hostFiles gathers files with everything they need to run.
type hostFiles struct {
	libraries map[string]string // soname to path
	files     map[string]hostFile
}

// collectTools finds the named programs of the host (or paths of programs) with
// their symbolic links, interpreters, shared libraries and plugins. The error
// wraps [ErrMissing] for one that the host does not have.
func collectTools(ctx context.Context, tools []string) ([]hostFile, error) {
	h := hostFiles{files: make(map[string]hostFile)}
	if len(tools) > 0 {
		text, err := command{Name: "ldconfig", Args: []string{"-p"}}.output(ctx)
		if err != nil {
			return nil, err
		}
		h.libraries = parseLibraryCache(text)
	}
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
	return h.sorted(), nil
}

// plugins returns the patterns of plugins for the programs gathered so far.
func (h *hostFiles) plugins() []string {
	var out []string
	for path := range h.files {
		for prefix, patterns := range toolPlugins {
			if strings.HasPrefix(filepath.Base(path), prefix) {
				out = append(out, patterns...)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (h *hostFiles) sorted() []hostFile {
	out := make([]hostFile, 0, len(h.files))
	for _, f := range h.files {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b hostFile) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// add takes a file, every symbolic link on the way to it, and what it is linked
// with.
func (h *hostFiles) add(path string) error {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return err
	}
	path = filepath.Join(dir, filepath.Base(path))
	if _, ok := h.files[path]; ok {
		return nil
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	f := hostFile{Path: path, Info: info}
	if info.Mode()&os.ModeSymlink != 0 {
		if f.Target, err = os.Readlink(path); err != nil {
			return err
		}
		h.files[path] = f
		next := f.Target
		if !filepath.IsAbs(next) {
			next = filepath.Join(dir, next)
		}
		return h.add(next)
	}
	h.files[path] = f
	needs, err := h.needs(path)
	if err != nil {
		return err
	}
	for _, n := range needs {
		if err := h.add(n); err != nil {
			return fmt.Errorf("%s needs: %w", path, err)
		}
	}
	return nil
}

// needs returns the interpreter and the shared libraries of an ELF file; nothing
// for other files.
func (h *hostFiles) needs(path string) ([]string, error) {
	info, err := readELF(path)
	if err != nil || info == nil {
		return nil, err
	}
	var out []string
	if info.interpreter != "" {
		out = append(out, info.interpreter)
	}
	for _, lib := range info.libraries {
		found, err := h.library(lib, info.runPath)
		if err != nil {
			return nil, fmt.Errorf("%s needs: %w", path, err)
		}
		out = append(out, found)
	}
	return out, nil
}

// library resolves a soname as ld.so(8) does: the file's own run path, then the
// cache of the system's directories.
func (h *hostFiles) library(name string, runPath []string) (string, error) {
	for _, dir := range runPath {
		p := filepath.Join(dir, name)
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	if p, ok := h.libraries[name]; ok {
		return p, nil
	}
	return "", &MissingError{What: "the shared library " + name}
}

// parseLibraryCache reads what "ldconfig -p" prints: lines like
//
//	libc.so.6 (libc6,x86-64) => /lib/x86_64-linux-gnu/libc.so.6
//
// Variants for newer processors than the guest's are left out.
func parseLibraryCache(text string) map[string]string {
	out := make(map[string]string)
	for line := range strings.Lines(text) {
		left, path, ok := strings.Cut(strings.TrimSpace(line), " => ")
		name, flags, ok2 := strings.Cut(left, " ")
		if !ok || !ok2 || !strings.Contains(flags, "x86-64") || strings.Contains(flags, "hwcap") {
			continue
		}
		if _, ok := out[name]; !ok {
			out[name] = path
		}
	}
	return out
}

// elfInfo is what an executable or library needs to be loaded.
type elfInfo struct {
	interpreter string
	libraries   []string
	runPath     []string
}

// readELF returns nil for a file that is not ELF.
func readELF(path string) (*elfInfo, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read headers: %w", err)
	}
	defer file.Close()
	magic := make([]byte, len(elf.ELFMAG))
	if _, err := io.ReadFull(file, magic); err != nil || string(magic) != elf.ELFMAG {
		return nil, nil
	}
	f, err := elf.NewFile(file)
	if err != nil {
		return nil, fmt.Errorf("read headers of %s: %w", path, err)
	}
	info := &elfInfo{}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		data := make([]byte, min(p.Filesz, 4096))
		if _, err := p.ReadAt(data, 0); err != nil {
			return nil, fmt.Errorf("read the interpreter of %s: %w", path, err)
		}
		info.interpreter = strings.TrimRight(string(data), "\x00")
	}
	// A static executable has no dynamic section: no library then.
	info.libraries, _ = f.ImportedLibraries()
	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		values, _ := f.DynString(tag)
		for _, v := range values {
			for _, dir := range strings.Split(v, ":") {
				dir = strings.NewReplacer("$ORIGIN", filepath.Dir(path), "${ORIGIN}",
					filepath.Dir(path)).Replace(dir)
				info.runPath = append(info.runPath, dir)
			}
		}
	}
	return info, nil
}

// static reports whether a file is an ELF executable that needs no interpreter
// and no library.
func static(path string) bool {
	info, err := readELF(path)
	return err == nil && info != nil && info.interpreter == "" && len(info.libraries) == 0
}
