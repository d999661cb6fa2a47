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

func (o *options) topFlags(fs *flag.FlagSet) func() error {
	fs.StringVar(&o.top.page, "page", "http://127.0.0.1:10256", "`URL` of the page of kernlb "+
		"watch -listen, or unix:PATH of a socket, for recent changes and how long applies take")
	fs.DurationVar(&o.top.interval, "interval", 2*time.Second, "how long to wait between two "+
		"readings")
	fs.BoolVar(&o.top.once, "once", false, "print one table, and end")
	return func() error {
		if o.top.interval <= 0 {
			return fmt.Errorf("-interval: %v: want more than 0", o.top.interval)
		}
		return nil
	}
}

// top runs kernlb-top: the one beside this program, or else the one in PATH.
func (p *program) top(ctx context.Context) error {
	path, err := findTop()
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

func findTop() (string, error) {
	if self, err := os.Executable(); err == nil {
		path := filepath.Join(filepath.Dir(self), topProgram)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(topProgram)
	if errors.Is(err, exec.ErrNotFound) {
		err = fmt.Errorf("%w: go install -C examples/%s . in a clone of the repository installs it",
			err, topProgram)
	}
	return path, err
}
