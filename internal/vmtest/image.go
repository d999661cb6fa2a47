package vmtest

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/vmtest/cpio"
)

// image is a file tree for the guest, in memory except for the files' contents.
// It is laid out as on today's Debian: /bin, /sbin, /lib and /lib64 are links into
// /usr.
type image struct {
	nodes map[string]node
}

// node is one entry: of content, data and device only the one that fits its mode.
type node struct {
	mode   uint32
	source string // file on the host that has the content
	data   string // content, or the target of a symbolic link
	device [2]uint32
}

// mergedDirs are the directories that live in /usr.
var mergedDirs = []string{"bin", "sbin", "lib", "lib64"}

// guestPath returns the place of an absolute path in an image.
func guestPath(p string) string {
	p = strings.TrimPrefix(path.Clean(p), "/")
	if top, _, _ := strings.Cut(p, "/"); slices.Contains(mergedDirs, top) {
		p = "usr/" + p
	}
	return p
}

// put adds an entry and the directories above it. The last one put in a place
// stays.
func (m *image) put(name string, n node) {
	if m.nodes == nil {
		m.nodes = make(map[string]node)
	}
	name = guestPath(name)
	m.nodes[name] = n
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if _, ok := m.nodes[dir]; !ok {
			m.nodes[dir] = node{mode: cpio.TypeDir | 0o755}
		}
	}
}

func (m *image) has(name string) bool {
	_, ok := m.nodes[guestPath(name)]
	return ok
}

func (m *image) dir(name string) { m.put(name, node{mode: cpio.TypeDir | 0o755}) }

func (m *image) link(name, target string) {
	m.put(name, node{mode: cpio.TypeSymlink | 0o777, data: target})
}

func (m *image) text(name, content string) {
	m.put(name, node{mode: cpio.TypeRegular | 0o644, data: content})
}

func (m *image) file(name, source string, perm uint32) {
	m.put(name, node{mode: cpio.TypeRegular | perm, source: source})
}

// tree adds what is below a directory of the host: directories, regular files and
// symbolic links.
func (m *image) tree(name, source string) error {
	return filepath.WalkDir(source, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("add %s to the image: %w", source, err)
		}
		rel, err := filepath.Rel(source, p)
		if err != nil {
			return fmt.Errorf("add %s to the image: %w", source, err)
		}
		at := path.Join(name, filepath.ToSlash(rel))
		switch {
		case d.IsDir():
			m.dir(at)
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return fmt.Errorf("add %s to the image: %w", source, err)
			}
			m.link(at, target)
		case d.Type().IsRegular():
			info, err := d.Info()
			if err != nil {
				return fmt.Errorf("add %s to the image: %w", source, err)
			}
			m.file(at, p, uint32(info.Mode().Perm()))
		}
		return nil
	})
}

// write writes the tree as a cpio archive, sorted by name.
func (m *image) write(w io.Writer) error {
	buf := bufio.NewWriterSize(w, 1<<20)
	out := cpio.NewWriter(buf)
	names := make([]string, 0, len(m.nodes))
	for name := range m.nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := m.nodes[name].write(out, name); err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	return buf.Flush()
}

func (n node) write(out *cpio.Writer, name string) error {
	h := cpio.Header{Name: name, Mode: n.mode, Size: int64(len(n.data)), Major: n.device[0],
		Minor: n.device[1]}
	if n.source == "" {
		return out.Write(h, strings.NewReader(n.data))
	}
	f, err := os.Open(n.source)
	if err != nil {
		return fmt.Errorf("add to the image: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("add to the image: %w", err)
	}
	h.Size = info.Size()
	return out.Write(h, f)
}
