package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dirFollower reports which files of a directory changed. A file that is being written counts when
// its writer has closed it (IN_CLOSE_WRITE). fsnotify does not report that, so it is not used here.
type dirFollower struct {
	changes <-chan changes // closed when the directory is gone, nil after close
	file    *os.File
	dir     os.FileInfo // what was at its path before following began
}

const dirEvents = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE |
	unix.IN_CREATE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// followDir begins to follow a directory.
func followDir(dir string) (*dirFollower, error) {
	st, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("follow: %w", err)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("follow %s: %w", dir, os.NewSyscallError("inotify_init1", err))
	}
	if _, err := unix.InotifyAddWatch(fd, dir, dirEvents); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("follow %s: %w", dir, os.NewSyscallError("inotify_add_watch", err))
	}
	c := make(chan changes)
	f := &dirFollower{changes: c, file: os.NewFile(uintptr(fd), "inotify"), dir: st}
	go f.run(dir, c)
	return f, nil
}

// close stops following: there are no more changes.
func (f *dirFollower) close() {
	if f.changes == nil {
		return
	}
	f.file.Close()
	for range f.changes { // until run has ended
	}
	f.changes = nil
}

// replaced reports whether another directory is at the path, as after a symbolic link was changed.
func (f *dirFollower) replaced(path string) bool {
	now, err := os.Stat(path)
	return err == nil && !os.SameFile(now, f.dir)
}

// run reads events until the directory is gone or the file is closed.
func (f *dirFollower) run(dir string, out chan<- changes) {
	defer close(out)
	buf := make([]byte, 64<<10)
	for {
		n, err := f.file.Read(buf)
		if err != nil {
			return
		}
		c, gone := decodeEvents(buf[:n], func(name string) bool {
			// A link is complete as soon as it exists.
			var st unix.Stat_t
			err := unix.Lstat(filepath.Join(dir, name), &st)
			return err == nil && (st.Mode&unix.S_IFMT == unix.S_IFLNK || st.Nlink > 1)
		})
		if len(c) > 0 {
			out <- c
		}
		if gone {
			return
		}
	}
}

// decodeEvents reads inotify events (inotify(7)). gone says that the directory no longer exists or
// is no longer followed.
func decodeEvents(b []byte, isLink func(string) bool) (c changes, gone bool) {
	c = changes{}
	for len(b) >= unix.SizeofInotifyEvent {
		e := (*unix.InotifyEvent)(unsafe.Pointer(&b[0]))
		end := unix.SizeofInotifyEvent + int(e.Len)
		if end > len(b) {
			break
		}
		name := string(bytes.TrimRight(b[unix.SizeofInotifyEvent:end], "\x00"))
		b = b[end:]
		switch {
		case e.Mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0:
			gone = true
		case e.Mask&unix.IN_Q_OVERFLOW != 0, strings.HasPrefix(name, ".."):
			// Events were lost, or a volume of Kubernetes changes all files (..data).
			c[everything] = true
		case !isManifest(name):
		case e.Mask&unix.IN_CREATE != 0 && !isLink(name):
			// its writer will close it
		default:
			c[name] = true
		}
	}
	return c, gone
}
