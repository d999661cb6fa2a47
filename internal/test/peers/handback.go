package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netns"
)

// handBackAll hands a node back to kube-proxy, for each pair of a kernlb backend and a kube-proxy
// among the named peers: kernlb ends, kube-proxy starts, and kernlb's leftovers are cleaned up.
func handBackAll(ctx context.Context, names []string, out io.Writer) error {
	var errs []error
	for _, from := range names {
		for _, to := range names {
			if !strings.HasPrefix(from, "kernlb-") || !strings.HasPrefix(to, "kube-proxy-") {
				continue
			}
			outcome, err := handBack(ctx, from, to)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s to %s: %w", from, to, err))
				continue
			}

			fmt.Fprintf(out, "%s to %s: %s\n", from, to, outcome)
		}
	}

	return errors.Join(errs...)
}

// handBack returns the numbers of checks whose outcome differs from kube-proxy alone: when
// kube-proxy has started, and after the cleanup.
func handBack(ctx context.Context, from, to string) (outcome string, err error) {
	alone, err := newSide(ctx, to, true)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, alone.close()) }()
	s, err := newSide(ctx, from, true)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	sc := scenarios(s.cluster)[0]
	for _, p := range []*side{alone, s} {
		if _, err := p.peer.sync(sc.change); err != nil {
			return "", err
		}
	}

	if err := s.peer.stop(); err != nil {
		return "", err
	}
	if s.peer, err = startPeer(ctx, to, s.cluster.Node.NS, settings(s.cluster, true),
		os.Stderr); err != nil {
		return "", err
	}

	if _, err := s.peer.sync(sc.change); err != nil {
		return "", err
	}
	want := alone.ask(ctx, &sc, sc.checks, moreTries)
	differ := func() (n int) {
		for i, got := range s.ask(ctx, &sc, sc.checks, moreTries) {
			if got.String() != want[i].String() {
				n++
			}
		}

		return n
	}

	began := differ()
	if err := cleanUp(ctx, from, s.cluster.Node.NS.NetNS()); err != nil {
		return "", err
	}
	return fmt.Sprintf("of %d checks %d differ when kube-proxy has begun, and %d after the cleanup",
		len(sc.checks), began, differ()), nil
}

// cleanUp removes the objects that a peer of kernlb has left.
func cleanUp(ctx context.Context, name string, ns netns.Namespace) error {
	b, err := backend(strings.TrimPrefix(name, "kernlb-"), ns)
	if err != nil {
		return err
	}
	defer b.Close()
	_, err = dataplane.New(b, nil).Cleanup(ctx)
	return err
}
