package kernelprobe

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/kernelerr"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// Oldest is the oldest kernel that the backends are tested on.
var Oldest = Release{5, 10}

// Explain turns a kernel's refusal of the changes in b into an error that says what is missing: a
// sentinel of package dataplane, if the refusal shows that much. b is nil if the kernel refused to
// open the backend. running is the kernel's release. Explain ignores the refusal of an object that
// exists already, because it says nothing about the kernel's features.
func Explain(err error, b *rawnl.Batch, running Release) error {
	err = rawnl.Except(err, syscall.EEXIST)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, dataplane.ErrMissingModule):
		return err
	case errors.Is(err, fs.ErrPermission):
		return kernelerr.NoPermission(
			"CAP_NET_ADMIN in the user namespace that owns the network namespace", err)
	case !lacking(err):
		return err
	case running.known() && running.Less(Oldest):
		return fmt.Errorf("%w: it is Linux %s, and %s is the oldest that kernlb is tested on: %w",
			dataplane.ErrKernelTooOld, running, Oldest, err)
	}
	if named := Missing(err, b); named != nil {
		return named
	}
	return fmt.Errorf("%w, or an option that the kernel was built without: %w",
		dataplane.ErrMissingModule, err)
}

// Missing names the modules that the kernel lacked when it refused the batch b. It returns nil if
// err names none.
func Missing(err error, b *rawnl.Batch) error {
	if l := modules(err, b); len(l) > 0 {
		return fmt.Errorf("%w %s: %w", dataplane.ErrMissingModule, strings.Join(l, ", "), err)
	}
	return nil
}

// lacking reports whether the kernel did not know something: a protocol, or the object of a
// message. An error from entering a network namespace may have the same number, but says nothing
// about the kernel's features.
func lacking(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.EPROTONOSUPPORT, syscall.EAFNOSUPPORT, syscall.ENOPROTOOPT,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return slices.ContainsFunc(rawnl.Refusals(err), func(e *rawnl.OpError) bool {
		return e.Errno == syscall.ENOENT || e.Errno == syscall.EOPNOTSUPP ||
			e.Errno == syscall.EINVAL
	})
}

// modules names the modules that the kernel did not find, sorted.
func modules(err error, b *rawnl.Batch) []string {
	if errors.Is(err, syscall.EPROTONOSUPPORT) {
		return []string{"nfnetlink"}
	}
	var l []string
	for _, e := range rawnl.Refusals(err) {
		switch {
		case e.Index < 0 && e.Errno == syscall.EOPNOTSUPP:
			l = append(l, "nf_tables")
		case e.Index >= 0 && e.Errno == syscall.ENOENT && b != nil:
			if m := module(message(b, e.Index), e.Offset); m != "" {
				l = append(l, m)
			}
		}
	}
	slices.Sort(l)
	return slices.Compact(l)
}
