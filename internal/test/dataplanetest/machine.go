package dataplanetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// must ends the test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// settled returns the outcome of an apply. Later work that failed is an error.
func settled(r *dataplane.Result, err error) (*dataplane.Result, error) {
	if err == nil {
		err = r.Unsettled
	}
	return r, err
}

// ok returns a function that returns v, unless there is an error, which ends the test:
//
//	b := ok(under.Open(netns))(t)
func ok[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// errOf returns the error of a call.
func errOf[T any](_ T, err error) error { return err }

// namespace returns a network namespace that lives until the test ends.
func (b *Backend) namespace(t *testing.T) *netnstest.NS {
	t.Helper()
	b.need(t)
	ns := ok(netnstest.NewNS(t.Name()))(t)
	t.Cleanup(func() { ns.Close() })
	return ns
}

// network builds a network that lives until the test ends.
func (b *Backend) network(t *testing.T) *world {
	t.Helper()
	b.need(t)
	w := newWorld(t, *b, scenario.Options{})
	t.Cleanup(w.close)
	return w
}

// opened is ok for an open backend, which is closed when the test ends.
func opened(b backends.Backend, err error) func(*testing.T) backends.Backend {
	return func(t *testing.T) backends.Backend {
		t.Helper()
		must(t, err)
		t.Cleanup(func() { b.Close() })
		return b
	}
}

// process calls do with a new backend, like another program that then ends.
func (b *Backend) process(ns *netnstest.NS, do func(b backends.Backend) error) error {
	opened, err := b.Open(ns.NetNS())
	if err != nil {
		return err
	}
	return errors.Join(do(opened), opened.Close())
}

// apply applies a state as another program.
func (b *Backend) apply(ctx context.Context, ns *netnstest.NS, s servicemodel.State) error {
	return b.process(ns, func(b backends.Backend) error {
		return errOf(settled(dataplane.New(b, nil).Apply(ctx, s)))
	})
}

// cleanup removes the instance as another program.
func (b *Backend) cleanup(ctx context.Context, ns *netnstest.NS) error {
	return b.process(ns, func(b backends.Backend) error { return errOf(b.Cleanup(ctx)) })
}

// runIn runs a command in a namespace, and returns what it prints on standard output.
func runIn(ctx context.Context, ns *netnstest.NS, in io.Reader, command ...string) (out []byte,
	err error) {
	err = ns.Do(func() (err error) {
		c := exec.CommandContext(ctx, command[0], command[1:]...)
		var stderr strings.Builder
		c.Stdin, c.Stderr = in, &stderr
		if out, err = c.Output(); err != nil {
			err = fmt.Errorf("%s: %w: %s%s", strings.Join(command, " "), err, out, &stderr)
		}
		return err
	})
	return out, err
}

// fromEnv returns the value of an environment variable, such as a number or "1m", or otherwise if
// it is not set.
func fromEnv[T int | time.Duration](t *testing.T, name string, otherwise T,
	parse func(string) (T, error)) T {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	v, err := parse(s)
	if err != nil || v < 0 {
		t.Fatalf("%s=%s: want a number or a duration", name, s)
	}
	return v
}
