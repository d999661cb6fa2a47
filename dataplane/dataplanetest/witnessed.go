package dataplanetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// witnessPatience is how long a witness is waited for.
const witnessPatience = time.Minute

// Witnessed has a backend tell which program changes what it has ([dataplane.Witness]): each of the
// commands does, and the kernel tells its name. The backend's own commits are none of that, nor is
// what another program does to a table of its own.
func Witnessed(t *testing.T, under Backend, commands ...string) {
	under.need(t)
	netnstest.Require(t)
	for _, command := range commands {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			p, err := witnessed(t, under, strings.Fields(command))
			if err != nil {
				t.Fatal(err)
			}
			if name, _, _ := strings.Cut(command, " "); p.Name != name || p.Thread == 0 {
				t.Errorf("the witness says %+v", p)
			}
		})
	}
}

// witnessed asks a backend, while it applies states, and until it answers, a bystander and the
// command run again and again: they may be too early.
func witnessed(t *testing.T, under Backend, command []string) (p dataplane.Program, err error) {
	ns, err := netnstest.NewNS(t.Name())
	if err != nil {
		return p, err
	}
	defer ns.Close()
	b, err := under.Open(ns.Fd())
	if err != nil {
		return p, err
	}
	defer b.Close()
	bystander := filepath.Join(t.TempDir(), "bystander")
	nft, err := exec.LookPath("nft")
	if err = errors.Join(err, os.Symlink(nft, bystander)); err != nil {
		return p, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), witnessPatience)
	defer cancel()
	answer := make(chan error, 1)
	go func() {
		var err error
		p, err = b.(dataplane.Witness).Witness(ctx)
		answer <- err
	}()
	e := dataplane.New(b, nil)
	from, to := faultedStates()
	for {
		_, applied := e.Apply(ctx, from)
		err := errors.Join(applied, do(ctx, ns, bystander, "add", "table", "ip", "other"),
			do(ctx, ns, bystander, "delete", "table", "ip", "other"))
		if err == nil {
			err = do(ctx, ns, command...)
		}
		select {
		case err := <-answer:
			return p, err
		default:
		}
		if err != nil {
			cancel()
			<-answer
			return p, err
		}
		from, to = to, from
	}
}

// do runs a command in a namespace.
func do(ctx context.Context, ns *netnstest.NS, command ...string) error {
	return ns.Do(func() error {
		out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, out)
		}
		return err
	})
}
