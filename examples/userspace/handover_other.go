//go:build !unix

package main

import (
	"errors"
	"net"
	"os"
)

// passesSockets tells whether the system passes sockets between processes.
const passesSockets = false

var errConnRefused = errors.New("connection refused") // never returned

func sendFiles(*net.UnixConn, []*os.File) error { return errors.ErrUnsupported }

func receiveFiles(*net.UnixConn) ([]*os.File, error) { return nil, errors.ErrUnsupported }
