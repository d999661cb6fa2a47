//go:build unix

package main

import (
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

const passesSockets = true

var errConnRefused error = unix.ECONNREFUSED

// What a message means. Each but the last carries one file.
const (
	oneFile = 'f'
	noMore  = '.'
)

// sendFiles sends files over a Unix socket.
func sendFiles(conn *net.UnixConn, files []*os.File) error {
	for _, f := range files {
		_, _, err := conn.WriteMsgUnix([]byte{oneFile}, unix.UnixRights(int(f.Fd())), nil)
		if err != nil {
			return err
		}
	}
	_, err := conn.Write([]byte{noMore})
	return err
}

// receiveFiles receives what sendFiles sends.
func receiveFiles(conn *net.UnixConn) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
		}
	}()
	for {
		f, err := receiveFile(conn)
		if err != nil || f == nil {
			return files, err
		}
		files = append(files, f)
	}
}

// receiveFile receives one file, or nil at the end.
func receiveFile(conn *net.UnixConn) (*os.File, error) {
	kind, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := conn.ReadMsgUnix(kind, rights)
	switch {
	case err != nil:
		return nil, err
	case n == 0:
		return nil, io.ErrUnexpectedEOF
	case kind[0] == noMore:
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(rights[:m])
	if err != nil {
		return nil, err
	}
	if len(messages) != 1 {
		return nil, fmt.Errorf("a message has %d control messages: want 1", len(messages))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "socket of the predecessor"), nil
}
