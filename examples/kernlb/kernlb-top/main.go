// Command kernlb-top shows live, in a terminal, what the services of a node do: connections,
// packets and bytes per second, the shares of endpoints, the engine's last changes, and their time.
// "kernlb top" runs it.
//
//	kernlb count     # once, on nftables and iptables; ipvs counts all the time
//	kernlb top
//
// It reads the kernel and changes nothing. It reads the counters each time, and the services of the
// instance as long as that takes less than a twentieth of the time. Together, readings take at most
// a fifth. Recent changes and the times of applies come from the page of "kernlb watch -listen", if
// there is one (-page), because only the engine knows them.
//
// Keys: q quits; space pauses; c, p, b and n sort by connections, packets, bytes and name; / shows
// only services with this text in their name; enter shows one service, and escape shows all again.
// With NO_COLOR in the environment there are no colours. With -once, and if the output is not a
// terminal, the program prints one table for one -interval, and ends.
//
// It is a separate program, because the terminal library brings 15 modules that kernlb does not
// need.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/charmbracelet/lipgloss"
	"github.com/charmbracelet/x/term"

	"github.com/kernlb/kernlb/examples/command/instance"
	"github.com/kernlb/kernlb/examples/command/version"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
)

// options are the flags.
type options struct {
	backend, instance, page string
	interval                time.Duration
	once                    bool
}

// parse reads the command line.
func (o *options) parse(args []string, w io.Writer) error {
	fs := flag.NewFlagSet("kernlb-top", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // the error message is enough
	fs.StringVar(&o.backend, "backend", "auto", "`NAME` of the kernel mechanism: nftables, "+
		"iptables or ipvs; auto takes the first that has services of the instance")
	fs.StringVar(&o.instance, "instance", instance.Default, "owner `NAME` of the kernel objects")
	fs.StringVar(&o.page, "page", "http://127.0.0.1:10256", "`URL` of the page of kernlb watch "+
		"-listen, or unix:PATH of a socket, for recent changes and how long applies take; empty: "+
		"none")
	fs.DurationVar(&o.interval, "interval", 2*time.Second, "how long to wait between two "+
		"readings; IPVS sums up every two seconds")
	fs.BoolVar(&o.once, "once", false, "print one table, and end")
	fs.Usage = func() {}
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(w, "usage: kernlb top [flags], or kernlb-top [flags]\n"+
			"       kernlb-top version\n\nexample:\n"+
			"  kernlb top -interval 5s\n\nKeys: q quits, space pauses, c, p, b and n sort, "+
			"/ searches, enter shows one service.\n\nflags:\n")
		fs.SetOutput(w)
		fs.PrintDefaults()
		return err
	} else if err != nil {
		return err
	}

	switch {
	case fs.NArg() > 0:
		return fmt.Errorf("unknown argument %q; -h lists the flags", fs.Arg(0))
	case o.interval < 100*time.Millisecond:
		return fmt.Errorf("-interval: %v: want 100ms or more", o.interval)
	case !slices.Contains([]string{"auto", nftables.Name, iptables.Name, ipvs.Name}, o.backend):
		return fmt.Errorf("-backend: there is no backend %q", o.backend)
	}

	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout)
	if err == nil || errors.Is(err, flag.ErrHelp) || errors.Is(err, context.Canceled) {
		return
	}
	fmt.Fprintf(os.Stderr, "kernlb top: %v\n", err)
	stop()
	os.Exit(1)
}

// run shows services until the user quits, or once.
func run(ctx context.Context, args []string, in, out *os.File) error {
	if version.Asked(args) {
		_, err := fmt.Fprintln(out, version.Of("kernlb-top"))
		return err
	}

	var o options
	if err := o.parse(args, out); err != nil {
		return err
	}
	p, err := newPage(o.page)
	if err != nil {
		return err
	}
	r, err := openReader(ctx, &o)
	if err != nil {
		return err
	}
	defer r.close()
	m := newModel(&o, lipgloss.NewRenderer(out))
	m.read = func() tea.Msg {
		start := time.Now()
		s, err := r.read(ctx)
		took := time.Since(start)
		return readMsg{s, p.recent(ctx), took, err}
	}

	if o.once || !term.IsTerminal(out.Fd()) || !term.IsTerminal(in.Fd()) {
		return printOnce(ctx, m, out)
	}
	_, err = tea.NewProgram(m, tea.WithContext(ctx), tea.WithAltScreen(), tea.WithInput(in),
		tea.WithOutput(out)).Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// printOnce prints what happened between two readings.
func printOnce(ctx context.Context, m *model, out io.Writer) error {
	for i := range 2 {
		if i > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(m.interval):
			}
		}

		m.Update(m.read())
		if m.err != nil {
			return m.err
		}
	}

	_, err := io.WriteString(out, m.table())
	return err
}
