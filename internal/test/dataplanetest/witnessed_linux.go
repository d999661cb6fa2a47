package dataplanetest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
)

// witnessPatience limits the wait for a witness.
const witnessPatience = time.Minute

// witnessed tests that a backend names the program that changes its objects ([backends.Blamer]).
// Each of the commands changes objects, and the kernel reports its name. The backend must ignore
// its own commits, and changes by other programs to their own tables.
func (o *Obstacles) witnessed(t *testing.T, under FaultyBackend) {
	for _, command := range o.Culprits {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			p := ok(witnessOf(t, under.Backend, strings.Fields(command)))(t)
			if name, _, _ := strings.Cut(command, " "); p.Name != name || p.Thread == 0 {
				t.Errorf("the witness says %+v", p)
			}
		})
	}
}

// witnessOf asks a backend while it applies states. Until the backend answers, a bystander and the
// command run again and again, because they may be too early.
func witnessOf(t *testing.T, under Backend, command []string) (p backends.Program, err error) {
	ns := under.namespace(t)
	b := opened(under.Open(ns.NetNS()))(t)
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
		p, err = b.(backends.Blamer).Blame(ctx)
		answer <- err
	}()

	run := func(command ...string) error {
		return errOf(runIn(ctx, ns, nil, command...))
	}
	e := dataplane.New(b, nil)
	from, to := faultedStates()
	for {
		_, applied := settled(e.Apply(ctx, from))
		err := errors.Join(applied, run(bystander, "add", "table", "ip", "other"),
			run(bystander, "delete", "table", "ip", "other"))
		if err == nil {
			err = run(command...)
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
