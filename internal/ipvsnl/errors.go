package ipvsnl

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// Errors that callers act on. They are found with [errors.Is]. A refusal by the kernel is an
// [rawnl.OpError], whose Meaning is one of them if the errno stands for it.
var (
	// ErrNotSupported: the running kernel has no IPVS, neither built in nor as a module that it
	// could load.
	ErrNotSupported = errors.New("the kernel has no IPVS (module ip_vs)")
	// ErrNoService: the service does not exist (ESRCH).
	ErrNoService = errors.New("no such service")
	// ErrNoDestination: the service has no such destination (ENOENT of a command about a
	// destination).
	ErrNoDestination = errors.New("no such destination")
	// ErrNoModule: the scheduler or the persistence engine is neither in the kernel nor a module
	// that it could load (ENOENT of a command about a service).
	ErrNoModule = errors.New("no such scheduler or persistence engine")
	// ErrExists: the service or the destination exists already (EEXIST).
	ErrExists = errors.New("exists already")
)

// Explain returns the meaning of the errno with which the kernel refused the command.
func (c Command) Explain(errno syscall.Errno) error {
	switch {
	case errno == syscall.EEXIST:
		return ErrExists
	case errno == syscall.ESRCH:
		return ErrNoService
	case errno != syscall.ENOENT:
		return nil
	case c == CommandSetDestination || c == CommandDelDestination:
		return ErrNoDestination
	case c == CommandNewService || c == CommandSetService:
		return ErrNoModule
	}
	return nil
}

// DescribePart returns the service of a request, or the destination and its service: "10.1.0.1:8080
// of TCP 10.0.0.1:80". The kernel does not point at an attribute.
func (c Command) DescribePart(request []byte, _ int) string {
	w, err := Parse(request[min(len(request), headersLen):])
	if err != nil {
		return ""
	}
	k, err := w.Service.Key()
	if err != nil {
		return ""
	}
	var s strings.Builder
	if d, err := w.Destination.Key(k.Family); err == nil {
		fmt.Fprintf(&s, "%v of ", d)
	}
	fmt.Fprint(&s, k)
	return s.String()
}
