package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// topProgram is a separate program, so that kernlb does not need its terminal library.
const topProgram = "kernlb-top"

// topOptions are the flags of top, which that program reads.
type topOptions struct {
	page     string
	interval time.Duration
	once     bool
}

func topFlags(o *options, fs *flag.FlagSet) {
	fs.StringVar(&o.top.page, "page", "http://127.0.0.1:10256", "`URL` of the page of kernlb "+
		"watch -listen, or unix:PATH of a socket, for recent changes and how long applies take")
	o.top.interval = 2 * time.Second
	fs.Func("interval", "how `LONG` to wait between two readings (default 2s)",
		func(s string) (err error) {
			if o.top.interval, err = time.ParseDuration(s); err == nil && o.top.interval <= 0 {
				err = errors.New("want more than 0")
			}
			return err
		})

	fs.BoolVar(&o.top.once, "once", false, "print one table, and end")
}

// top runs kernlb-top, from the directory of this program or else from PATH.
func (p *program) top(ctx context.Context) error {
	self, err := os.Executable()
	path := filepath.Join(filepath.Dir(self), topProgram)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		if path, err = exec.LookPath(topProgram); errors.Is(err, exec.ErrNotFound) {
			err = fmt.Errorf("%w: go install -C examples/kernlb ./%s in a clone of the repository "+
				"installs it", err, topProgram)
		}
	}

	if err != nil {
		return err
	}
	o := &p.opts.top
	cmd := exec.CommandContext(ctx, path, "-backend", p.opts.backend, "-instance", p.opts.instance,
		"-page", o.page, "-interval", o.interval.String(), fmt.Sprintf("-once=%v", o.once))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.stdin, p.stdout, p.stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Run(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
