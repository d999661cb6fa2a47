package vmtest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"
	"github.com/u-root/uio/uio"
)

// image is a file tree for the guest: cpio records by path. The contents of the host's files are
// not in memory. As on Debian, /bin, /sbin, /lib and /lib64 are links into /usr.
type image map[string]cpio.Record

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

// put adds a record and the directories above it. It replaces an earlier record at the same path.
func (m image) put(r cpio.Record) {
	r.Name = guestPath(r.Name)
	m[r.Name] = r
	for dir := path.Dir(r.Name); dir != "."; dir = path.Dir(dir) {
		if _, ok := m[dir]; !ok {
			m[dir] = cpio.Directory(dir, 0o755)
		}
	}
}

func (m image) has(name string) bool {
	_, ok := m[guestPath(name)]
	return ok
}

func (m image) dir(name string) { m.put(cpio.Directory(name, 0o755)) }

func (m image) link(name, target string) { m.put(cpio.Symlink(name, target)) }

func (m image) text(name, content string) { m.put(cpio.StaticFile(name, content, 0o644)) }

// file adds a file of the host.
func (m image) file(name, source string, perm fs.FileMode) error {
	info, err := os.Stat(source)
	if err != nil {
		return fmt.Errorf("add to the image: %w", err)
	}
	m.put(cpio.Record{
		Info: cpio.Info{Name: name, Mode: cpio.S_IFREG | uint64(perm),
			FileSize: uint64(info.Size())},
		ReaderAt: uio.NewLazyLimitFile(source, info.Size()),
	})
	return nil
}

// tree adds what is below a directory of the host: directories, regular files and symbolic links.
func (m image) tree(name, source string) error {
	err := filepath.WalkDir(source, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(source, p)
		if err != nil {
			return err
		}
		return m.entry(path.Join(name, filepath.ToSlash(rel)), p, d)
	})
	if err != nil {
		return fmt.Errorf("add %s to the image: %w", source, err)
	}
	return nil
}

// entry adds one entry of a directory of the host.
func (m image) entry(name, source string, d fs.DirEntry) error {
	switch {
	case d.IsDir():
		m.dir(name)
	case d.Type()&fs.ModeSymlink != 0:
		target, err := os.Readlink(source)
		if err != nil {
			return err
		}
		m.link(name, target)
	case d.Type().IsRegular():
		info, err := d.Info()
		if err != nil {
			return err
		}
		return m.file(name, source, info.Mode().Perm())
	}
	return nil
}

// write writes the tree as a cpio archive, sorted by name.
func (m image) write(w io.Writer) error {
	buf := bufio.NewWriterSize(w, 1<<20)
	out := cpio.Newc.Writer(buf)
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if err := out.WriteRecord(m[name]); err != nil {
			return fmt.Errorf("write %s to the image: %w", name, err)
		}
	}
	if err := cpio.WriteTrailer(out); err != nil {
		return fmt.Errorf("end the image: %w", err)
	}
	return buf.Flush()
}

func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = dst.ReadFrom(src)
	return errors.Join(err, dst.Close())
}
