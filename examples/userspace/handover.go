package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
)

// A process that runs passes its sockets to the one that is started after it, over a Unix socket at
// the path that -handover gives both:
//
//	successor    predecessor
//	   │  connects   │
//	   │ ◄─ sockets ─│  both accept from the same queues
//	   │ ── ready ──►│  the successor's services are applied; the predecessor accepts no more, and
//	   │             │  gives its connections time to end
//
// If either dies before it is ready, the other goes on as if it had not been there. The sockets are
// passed, rather than bound anew beside the old ones (SO_REUSEPORT): a client that waits in the
// queue of a socket that is closed is reset, and any program of the same user could join.

// successorLimit is how long a successor may take until its services are applied.
const successorLimit = time.Minute

// predecessor is the process whose sockets this one takes over.
type predecessor struct {
	path string
	conn *net.UnixConn // nil if there is none
}

// sockets returns what the service manager passed, and what the predecessor has.
func (p *predecessor) sockets() ([]*os.File, error) {
	files := activation.Files(true)
	if p.path == "" {
		return files, nil
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: p.path, Net: "unix"})
	if isNobody(err) {
		return files, nil
	}
	if err == nil {
		p.conn = conn
		_ = conn.SetDeadline(time.Now().Add(successorLimit))
		var more []*os.File
		more, err = receiveFiles(conn)
		files = append(files, more...)
	}
	if err != nil {
		return nil, fmt.Errorf("-handover: take over from %s: %w", p.path, err)
	}
	return files, nil
}

// isNobody tells that no process listens at the path.
func isNobody(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errConnRefused)
}

// ready tells the predecessor that it is not needed any more.
func (p *predecessor) ready() {
	if p.conn != nil {
		_, _ = p.conn.Write([]byte{1}) // if it died, so much the better
	}
	p.close()
}

func (p *predecessor) close() {
	if p.conn != nil {
		_ = p.conn.Close()
	}
}

// passOn passes the sockets to a successor, if one comes before the context ends, and returns
// whether one did.
func passOn(
	ctx context.Context, path string, sockets func() ([]*os.File, error), log *slog.Logger,
) bool {
	l, err := listenAt(path)
	if err != nil {
		log.Error("-handover: there can be no successor", "error", err)
		return false
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	defer l.Close()
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return false // the context ended
		}
		if err := passTo(ctx, conn, sockets); err == nil {
			return true
		}
		log.Warn("a successor did not begin to serve: this process goes on", "error", err)
	}
}

// listenAt listens at a path, in the place of who did before. The file stays when it is closed: it
// may be the successor's.
func listenAt(path string) (*net.UnixListener, error) {
	_ = os.Remove(path + ".new") // of one that was killed here
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path + ".new", Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path+".new", 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if err := os.Rename(path+".new", path); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// passTo passes the sockets to one successor, and waits until it is ready.
func passTo(
	ctx context.Context, conn *net.UnixConn, sockets func() ([]*os.File, error),
) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	files, err := sockets()
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	if err := conn.SetDeadline(time.Now().Add(successorLimit)); err != nil {
		return err
	}
	if err := sendFiles(conn, files); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}
