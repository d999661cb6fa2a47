package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
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
	open := changes{} // new files that may have a writer
	for {
		if len(open) > 0 {
			_ = f.file.SetReadDeadline(time.Now().Add(again)) // it fails if the file is closed
		}
		n, err := f.file.Read(buf)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		c, gone := decodeEvents(buf[:n], open)
		for name := range open {
			if complete(filepath.Join(dir, name)) {
				c[name] = true
				delete(open, name)
			}
		}

		if len(open) == 0 {
			_ = f.file.SetReadDeadline(time.Time{})
		}
		if len(c) > 0 {
			out <- c
		}
		if gone {
			return
		}
	}
}

// unmodified is the time after which a new file that has not changed counts as complete.
const unmodified = 3 * time.Second

// complete reports whether a new file needs no wait for its writer: it is a link, or has not
// changed for a while. No event comes for a file that was written without a name (O_TMPFILE).
func complete(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK || st.Nlink > 1 ||
		st.Size > 0 && time.Since(time.Unix(st.Ctim.Unix())) > unmodified
}

// decodeEvents reads inotify events (inotify(7)). It adds new files to open, and removes those that
// changed again. gone says that the directory no longer exists or is no longer followed.
func decodeEvents(b []byte, open changes) (c changes, gone bool) {
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
		case e.Mask&unix.IN_CREATE != 0:
			open[name] = true
		default:
			c[name] = true
			delete(open, name)
		}
	}

	return c, gone
}
