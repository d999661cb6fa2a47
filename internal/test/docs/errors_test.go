package docs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

var _ = onError

// onError is the function in errors.md.
func onError(ctx context.Context, engine *dataplane.Engine, state servicemodel.State) error {
	_, err := engine.Apply(ctx, state)
	var refused *kernelerr.OpError
	switch {
	case errors.Is(err, kernelerr.ErrNoPermission):
		return fmt.Errorf("run this with CAP_NET_ADMIN: %w", err)
	case errors.As(err, &refused):
		log.Print(refused.Op, refused.Object, refused.Errno, refused.ExtAck)
	}

	return nil
}

// exported is an error that a package exports.
var exported = regexp.MustCompile(`(?m)^(?:var |\t)(Err[A-Z]\w*) += |^type ([A-Z]\w*Error) (\S+)`)

// exportedErrors returns the errors that public packages export, such as "kernelerr.ErrConflict",
// and the directories of their packages.
func exportedErrors(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d.Name() == "internal" || d.Name() == "examples" || d.Name() == ".git" {
				return filepath.SkipDir
			}
			return err
		}

		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		src, err := os.ReadFile(path)
		dir := filepath.Dir(path)
		for _, m := range exported.FindAllStringSubmatch(string(src), -1) {
			method := "func (e *" + m[2] + ") Error() string"
			if m[1] != "" || m[3] == "=" || strings.Contains(string(src), method) {
				found[filepath.Base(dir)+"."+m[1]+m[2]] = dir
			}
		}

		return err
	})
	require.NoError(t, err)
	return found
}

// provoked has, for each error, a function that provokes it, and the way in which callers detect
// it. Errors that need a kernel are provoked by the tests of their package.
var provoked = map[string]struct {
	provoke func(t *testing.T) error
	matches func(error) bool
}{
	"ErrNoPermission": {kernelSays(syscall.EPERM), func(err error) bool {
		return errors.Is(err, kernelerr.ErrNoPermission) && errors.Is(err, fs.ErrPermission)
	}},
	"ErrConflict": {kernelSays(kernelerr.ErrConflict), is(kernelerr.ErrConflict)},
	"OpError":     {kernelSays(syscall.ENOBUFS), as[*kernelerr.OpError]},
	"PhaseError":  {kernelSays(syscall.ENOBUFS), as[*dataplane.PhaseError]},
	"ErrMissingModule": {openingSays(nft.Release{Major: 6, Minor: 1}),
		is(kernelerr.ErrMissingModule)},
	"ErrKernelTooOld": {openingSays(nft.Release{Major: 4, Minor: 19}),
		is(kernelerr.ErrKernelTooOld)},
	"ErrRefused":       {refuses(nil), is(dataplane.ErrRefused)},
	"FieldError":       {refuses(nil), as[*servicemodel.FieldError]},
	"ErrUnsupported":   {refuses(&backends.UnsupportedError{}), is(backends.ErrUnsupported)},
	"UnsupportedError": {refuses(&backends.UnsupportedError{}), as[*backends.UnsupportedError]},
	"ErrCollision":     {refuses(&backends.CollisionError{}), is(backends.ErrCollision)},
	"CollisionError":   {refuses(&backends.CollisionError{}), as[*backends.CollisionError]},
	"ErrRunning":       {runsTwice, is(dataplane.ErrRunning)},
	"TakenError":       {takes, as[*servicemodel.TakenError]},
	"ErrOtherTable":    {appliesTwice, is(servicemodel.ErrOtherTable)},
}

// kernelSays applies a state to a kernel that refuses all transactions.
func kernelSays(err error) func(t *testing.T) error {
	if errno, ok := err.(syscall.Errno); ok {
		err = &kernelerr.OpError{Op: "add", Object: "element x", Errno: errno}
	}
	return func(t *testing.T) error {
		m := memory.New(nil)
		m.Fail(memory.CallCommit, 100, err)
		_, err := dataplane.New(m, nil).Apply(t.Context(), web("a"))
		return err
	}
}

func openingSays(running nft.Release) func(t *testing.T) error {
	return func(*testing.T) error {
		return nft.Explain(&kernelerr.OpError{Index: -1, Errno: syscall.EOPNOTSUPP}, nil,
			running)
	}
}

// refuses gives a strict engine a state that the backend refuses, or an invalid state.
func refuses(err error) func(t *testing.T) error {
	return func(t *testing.T) error {
		m, state := memory.New(nil), web("a")
		if err == nil {
			state = state.WithService(&servicemodel.Service{Name: servicemodel.Name{Name: "a"}})
		} else {
			m.Refuse(func(*servicemodel.ChangeSet) error { return err })
		}

		_, err := dataplane.New(m, &dataplane.Config{Strict: true}).Apply(t.Context(), state)
		return err
	}
}

// appliesTwice applies a planned change set twice.
func appliesTwice(t *testing.T) error {
	engine := dataplane.New(memory.New(nil), nil)
	preview := must.OK(engine.Plan(t.Context(), web("a")))(t)
	text := must.OK(json.Marshal(preview.Changes))(t)
	var changes servicemodel.ChangeSet
	require.NoError(t, json.Unmarshal(text, &changes))
	must.OK(engine.ApplyChanges(t.Context(), &changes))(t)
	_, err := engine.ApplyChanges(t.Context(), &changes)
	return err
}

func runsTwice(t *testing.T) (err error) {
	e := dataplane.New(memory.New(nil), nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer e.Subscribe(func(context.Context, dataplane.Event) {
		err = e.Run(ctx, nil)
		cancel()
	})()

	e.Set(web("a"))
	require.ErrorIs(t, e.Run(ctx, nil), context.Canceled)
	return err
}

func takes(t *testing.T) error {
	parts := dataplane.NewParts(memory.New(nil), nil)
	must.OK(parts.Apply(t.Context(), "a", web("a")))(t)
	_, err := parts.Apply(t.Context(), "b", web("b"))
	require.ErrorIs(t, err, dataplane.ErrRefused)
	return err
}

// web is a state with a service in a namespace.
func web(namespace string) servicemodel.State {
	return servicemodel.State{}.WithService(&servicemodel.Service{
		Name:        servicemodel.Name{Namespace: namespace, Name: "web"},
		Ports:       []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}},
		ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
	})
}

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func as[T error](err error) bool {
	var target T
	return errors.As(err, &target)
}

// Every exported error has a row in errors.md, every row is about an existing error, and each error
// is provoked here or by a test of its package.
func TestTheTableOfErrors(t *testing.T) {
	t.Parallel()
	text, _, _ := strings.Cut(source(t, "../../../docs/errors.md"), "\n## ")
	found := exportedErrors(t)
	rows := map[string]bool{}
	for _, line := range strings.Split(text, "\n") {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		first, _, _ := strings.Cut(line[1:], "|")
		for _, name := range strings.Split(first, ",") {
			name = strings.Trim(name, " `")
			rows[name] = true
			require.True(t, found[name] != "" || name == "errors.ErrUnsupported", name)
		}
	}

	for name, dir := range found {
		require.True(t, rows[name], "%s has no row", name)
		_, id, _ := strings.Cut(name, ".")
		if p, here := provoked[id]; here {
			synctest.Test(t, func(t *testing.T) {
				err := p.provoke(t)
				require.Error(t, err, name)
				require.True(t, p.matches(err), "%s: %v", name, err)
			})

			continue
		}

		require.True(t, testedIn(t, dir, id) || testedIn(t, filepath.Dir(dir), id),
			"no test of %s provokes it", name)
	}
}

// testedIn reports whether a test of a package, or of a package below it, names an error.
func testedIn(t *testing.T, dir, id string) bool {
	t.Helper()
	tests := must.OK(filepath.Glob(filepath.Join(dir, "*_test.go")))(t)
	below := must.OK(filepath.Glob(filepath.Join(dir, "*", "*_test.go")))(t)
	for _, path := range append(tests, below...) {
		src := must.OK(os.ReadFile(path))(t)
		if regexp.MustCompile(`\b` + id + `\b`).Match(src) {
			return true
		}
	}

	return false
}
