// Loadbalancer is an L4 load balancer for one host. Virtual addresses and their backends come from
// a file. The program checks the backends, and the kernel balances among those that answer. It does
// the work of keepalived's LVS part, on nftables, iptables or IPVS.
//
//	loadbalancer -config loadbalancer.yaml [-backend nftables|iptables|ipvs] [-listen ADDRESS]
//	loadbalancer -config loadbalancer.yaml -check
//	loadbalancer -cleanup
//	loadbalancer convert keepalived.conf
//
// On SIGHUP the program reads the file again. It reports a broken file and keeps the old file's
// services. When the program stops or is killed, the kernel continues to balance. A new process
// adopts the kernel's contents.
//
// # How it works
//
// Package config reads the file, and a monitor of package checks finds out which backends answer.
// The balancer makes states from both, and an engine makes the kernel hold them. There is no other
// storage: after a start, the kernel tells which backends were in use, and after a reload, the
// checks keep their verdicts. A changed verdict updates only the services that use the backend. A
// new file is first planned. If the kernel mechanism cannot express one of its services, the whole
// file is refused, with the line of the service.
//
// In the model, a backend that fails is not ready, a drained backend is quiesced, and a backend
// that leaves the file is gone. A backend that passes its checks but does not answer clients is not
// ready either, if the flag or the file asks for that (package dataplane/silence). The service's
// policy decides about its connections, and the keeper of flows carries it out. A sorry server is
// an endpoint that exists while there is no other.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/examples/command/accepted"
	"github.com/kernlb/kernlb/examples/command/feedback"
	"github.com/kernlb/kernlb/examples/command/instance"
	"github.com/kernlb/kernlb/examples/command/version"
	"github.com/kernlb/kernlb/examples/loadbalancer/config"
	"github.com/kernlb/kernlb/examples/loadbalancer/keepalived"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// options are the flags.
type options struct {
	config, backend, listen string
	check, cleanup, ejects  bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		err = nil
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "loadbalancer:", err)
		os.Exit(1)
	}
}

// command executes the command line.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	switch {
	case len(args) > 0 && args[0] == "convert" && !asksHelp(args[1:]):
		return convert(args[1:], stdout, stderr)
	case version.Asked(args):
		_, err := fmt.Fprintln(stdout, version.Of("loadbalancer"))
		return err
	}

	var o options
	f := flag.NewFlagSet("loadbalancer", flag.ContinueOnError)
	f.SetOutput(io.Discard) // the returned error is enough
	f.StringVar(&o.config, "config", "loadbalancer.yaml", "what to balance, a `file`")
	f.StringVar(&o.backend, "backend", "", "nftables, iptables or ipvs (default nftables; with "+
		"-cleanup all)")
	f.StringVar(&o.listen, "listen", "127.0.0.1:9095",
		"`address` of /metrics, /backends, /healthz and the page; empty: none")
	f.BoolVar(&o.check, "check", false, "say whether the file is right, and end")
	f.BoolVar(&o.ejects, "eject-silent", false, "take out backends that do not answer the TCP "+
		"connections of clients, until they answer again, of all services whose silentEndpoints "+
		"is not stay; without it, of those with silentEndpoints: eject")
	f.BoolVar(&o.cleanup, "cleanup", false, "remove all that the program has in the kernel")
	if len(args) > 0 && args[0] == "convert" { // -h follows
		args = args[1:]
	}
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		f.SetOutput(stdout)
		f.PrintDefaults()
		return err
	} else if err != nil {
		return fmt.Errorf("%w: see -help", err)
	}

	if f.NArg() > 0 {
		return fmt.Errorf("there is no command %q: see -help", f.Arg(0))
	}
	if o.backend != "" && mechanismChecks[o.backend] == nil {
		return fmt.Errorf("-backend: %q: must be nftables, iptables or ipvs", o.backend)
	}
	if o.check && o.cleanup {
		return errors.New("-check and -cleanup: want one of them")
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	if o.cleanup {
		return cleanup(ctx, o, log)
	}
	o.backend = cmp.Or(o.backend, nftables.Name)
	if o.check {
		return checkFile(ctx, o, stdout, stderr)
	}
	err := run(ctx, o, log)
	if errors.Is(err, context.Canceled) {
		log.Info("stopped; the kernel stays as it is")
		return nil // it was asked to stop, perhaps during its start
	}

	return err
}

// asksHelp reports whether a command line asks for help.
func asksHelp(args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		return slices.Contains([]string{"-h", "-help", "--help"}, a)
	})
}

// usage is the help, before the flags.
const usage = `usage:
  loadbalancer [-config FILE] [-backend NAME] [-listen ADDRESS] [-eject-silent]
                                              balance until interrupted
  loadbalancer -check [-config FILE] [-backend NAME]              say what is wrong with the file
  loadbalancer -cleanup [-backend NAME]   remove all that the program has in the kernel, with one
                                          backend or with all
  loadbalancer convert [-i ID] FILE           print the file that a configuration of keepalived, or
                                              what ipvsadm-save -n printed, means; - is standard
                                              input; ID is the argument of keepalived's -i
  loadbalancer version

When the program stops, the kernel goes on. SIGHUP makes it read the file again. The instance in the
kernel is loadbalancer: "kernlb show -instance loadbalancer" prints it.

flags:
`

// checkFile returns the problems of the file, including what the kernel mechanism cannot express.
// It writes nothing to the kernel, and needs no privileges: a mechanism that cannot be opened here
// is only a warning, and so is a fault of the node.
func checkFile(ctx context.Context, o options, stdout, stderr io.Writer) error {
	f, err := load(o.config)
	if err != nil {
		return mayBeMore(err)
	}
	if err := haveDevices(f); err != nil {
		return err
	}
	if o.listen != "" {
		if _, err := net.ResolveTCPAddr("tcp", o.listen); err != nil {
			return fmt.Errorf("-listen: %w", err)
		}
	}

	try, at := mechanismChecks[o.backend], o.backend
	backend, err := openBackend(o.backend, f.Timeouts)
	switch {
	case errors.Is(err, kernelerr.ErrNoPermission), errors.Is(err, kernelerr.ErrMissingModule),
		errors.Is(err, kernelerr.ErrKernelTooOld):
		fmt.Fprintf(stderr, "warning: %s does not work here: %v\n", o.backend, err)
		at += ", which does not work here"
	case err != nil:
		return err
	default:
		defer backend.Close()
		try = backend.Check
	}

	if err := refusals(f, o.backend, nil, inEmpty(try)); err != nil {
		return err
	}
	for _, a := range nowhere(f) {
		fmt.Fprintf(stderr, "warning: %s is on no device of this host: only routed packets "+
			"arrive\n",
			a)
	}
	found, err := faults(ctx, newChecker(nil), f)
	if err != nil {
		return err
	}
	for _, n := range found {
		fmt.Fprintf(stderr, "warning: this node: %s; %s\n", n.Means, n.Do)
	}
	services := "services"
	if len(f.Services) == 1 {
		services = "service"
	}
	_, err = fmt.Fprintf(stdout, "%s: right for %s: %d %s\n", o.config, at, len(f.Services),
		services)
	return err
}

// mayBeMore adds to the faults of a file that there may be more of them.
func mayBeMore(err error) error {
	if fault := (*config.FieldError)(nil); errors.As(err, &fault) {
		return fmt.Errorf("%w\n(when these are mended, there may be more)", err)
	}
	return err
}

// load reads the file of the flag -config.
func load(name string) (*config.File, error) {
	f, err := config.Load(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w (-config FILE)", err)
	}
	return f, err
}

// newChecker returns a checker of the node. The engine may be nil.
func newChecker(e *dataplane.Engine) *node.Checker {
	cfg := &node.Config{Ours: instance.Owns("loadbalancer")}
	if e != nil {
		cfg.Undone = func() string { return e.Status().Undone.String() }
	}
	return node.NewChecker(cfg)
}

// faults returns what keeps this node from carrying connections to the backends of a file, if they
// are up.
func faults(ctx context.Context, c *node.Checker, f *config.File) ([]node.Finding, error) {
	states, err := f.Extremes()
	if err != nil {
		return nil, err
	}
	table, err := servicemodel.Resolve(nil, states[0])
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(c.Report(ctx, table).Findings),
		func(n node.Finding) bool { return n.Severity == node.Note }), nil
}

// nowhere returns the addresses that no device of this host has or will get. If the devices cannot
// be asked, it returns none.
func nowhere(f *config.File) (out []netip.Addr) {
	held, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for i := range f.Services {
		s := &f.Services[i]
		for _, a := range s.Addresses {
			if s.Device == "" && !slices.Contains(out, a) &&
				!slices.ContainsFunc(held, func(h net.Addr) bool {
					p, err := netip.ParsePrefix(h.String())
					return err == nil && p.Addr() == a
				}) {
				out = append(out, a)
			}
		}
	}

	return out
}

// mechanismChecks say what kernel mechanisms cannot express. They need no kernel.
var mechanismChecks = map[string]func(*servicemodel.ChangeSet) error{
	nftables.Name: nftables.Check, iptables.Name: iptables.Check, ipvs.Name: ipvs.Check}

// inEmpty returns a function that says why a kernel mechanism that holds nothing cannot hold a
// state.
func inEmpty(check func(*servicemodel.ChangeSet) error) func(servicemodel.State) error {
	return func(s servicemodel.State) error {
		table, err := servicemodel.Resolve(nil, s)
		if err != nil {
			return err
		}
		return check(servicemodel.Diff(nil, table))
	}
}

// convert prints the file for a configuration of keepalived.
func convert(args []string, stdout, stderr io.Writer) error {
	how := &keepalived.Config{Include: true}
	f := flag.NewFlagSet("convert", flag.ContinueOnError)
	f.SetOutput(io.Discard) // the returned error is enough
	f.StringVar(&how.ID, "i", "", "the argument of keepalived's -i")
	if err := f.Parse(args); err != nil {
		return fmt.Errorf("convert: %w", err)
	}
	if f.NArg() != 1 {
		return errors.New("convert: want the name of one file, a configuration of keepalived " +
			"or the " +
			"output of ipvsadm-save -n, or - for standard input")
	}
	name, text, err := f.Arg(0), []byte(nil), error(nil)
	if name == "-" {
		name = "standard input"
		text, err = io.ReadAll(os.Stdin)
	} else {
		text, err = os.ReadFile(name)
	}
	if err != nil {
		return err
	}
	r, err := keepalived.Convert(name, string(text), how)
	for _, w := range r.Warnings {
		fmt.Fprintln(stderr, "warning:", w)
	}
	if err != nil {
		return mayBeMore(err)
	}
	for _, c := range r.Changes {
		fmt.Fprintln(stderr, "changed:", c)
	}
	out, err := config.Parse("the file", r.File)
	if err != nil {
		return err
	}
	head, err := neededBackend(out, r.From)
	if err != nil {
		return err
	}
	if head != "" {
		fmt.Fprintln(stderr, head)
		head = "; " + head
	}
	fmt.Fprintf(stdout, "# converted from %s%s\n", name, head)
	for _, server := range r.Unchecked {
		fmt.Fprintf(stdout, "# %s has no check and is always up: add checks\n", server)
	}
	_, err = stdout.Write(r.File)
	return err
}

// neededBackend returns which kernel mechanism a file needs, and why, if the default cannot express
// it. It is an error if none can.
func neededBackend(f *config.File, from func(path string) string) (text string, err error) {
	var first []string
	for _, m := range mechanisms(f.Timeouts) {
		refused := refusals(f, m.Name, nil, inEmpty(mechanismChecks[m.Name]))
		if refused == nil {
			if first == nil {
				return "", nil
			}
			return fmt.Sprintf("needs -backend %s: %s", m.Name, strings.Join(first, ", ")), nil
		}

		reasons, why := []error{refused}, []string(nil)
		if each, ok := refused.(interface{ Unwrap() []error }); ok {
			reasons = each.Unwrap()
		}
		for _, r := range reasons {
			of, asks := (*config.FieldError)(nil), (*backends.UnsupportedError)(nil)
			if text = r.Error(); errors.As(r, &of) && errors.As(r, &asks) {
				text = fmt.Sprintf("%s %s (%s)", asks.Field, asks.Value, from(of.Path))
			} else if of != nil {
				text = fmt.Sprintf("%s (%s)", of.Path, from(of.Path))
			}
			why = append(why, text)
		}

		if first == nil {
			first = why
		}
		err = errors.Join(err, fmt.Errorf("%s cannot express: %s", m.Name, strings.Join(why, ", ")))
	}

	return "", err
}

// run balances until the context ends.
func run(ctx context.Context, o options, log *slog.Logger) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	file, err := load(o.config)
	if err != nil {
		return err
	}
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	var listener net.Listener
	if o.listen != "" { // open it before anything is written
		if listener, err = net.Listen("tcp", o.listen); err != nil {
			return fmt.Errorf("-listen: %w", err)
		}
		defer listener.Close()
	}

	backend, err := openBackend(o.backend, file.Timeouts)
	if err != nil {
		return err
	}
	defer backend.Close()
	table, err := conntrack.Open(nil)
	if err != nil {
		return err
	}
	defer table.Close()
	keeper, err := flows.New(table, &flows.Config{Logger: log})
	if err != nil {
		return err
	}
	engine := dataplane.New(backend, &dataplane.Config{Logger: log, Flows: keeper})
	b, err := newBalancer(engine, log)
	if err != nil {
		return err
	}
	follower, err := feedback.New(engine, o.ejects, accepted.Path("loadbalancer-silent.json"), log)
	if err != nil {
		return err
	}
	defer follower.Close()
	b.give, b.silent = follower.Set, follower.Silent
	if err := b.start(ctx, file); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return feedback.Run(ctx, follower, log) })
	g.Go(func() error { return b.monitor.Run(ctx) })
	g.Go(func() error { return engine.Run(ctx, nil) })
	g.Go(func() error { return b.started(ctx, file, o) })
	if listener != nil {
		handler, closeHandler := b.handler(keeper, table)
		defer closeHandler()
		g.Go(func() error { return serve(ctx, listener, handler) })
	}

	g.Go(func() error { return b.follow(ctx, o.config, hangup) })
	return g.Wait()
}

// started waits until the kernel holds the services. It then tells the service manager, removes the
// program's objects of other kernel mechanisms, and logs what is wrong with the node.
func (b *balancer) started(ctx context.Context, f *config.File, o options) error {
	if b.engine.Wait(ctx, 1) != nil {
		return nil // it ended, or the log says why
	}
	b.log.Info("started", "backend", o.backend, "services", len(f.Services), "listen", o.listen)
	tell(daemon.SdNotifyReady)
	for _, m := range mechanisms(f.Timeouts) {
		if m.Name == b.engine.Status().Backend {
			continue
		}
		if err := remove(ctx, m, b.log); err != nil && ctx.Err() == nil {
			b.log.Warn("services of another backend are still in the kernel", "backend", m.Name,
				"error", err)
		}
	}

	for _, a := range nowhere(f) {
		b.log.Warn("the address is on no device of this host: only routed packets arrive",
			"address", a)
	}

	found, err := faults(ctx, b.node, f)
	for _, n := range found {
		b.log.Warn("this node", "finding", n.Means, "do", n.Do)
	}
	return err
}

// cleanup removes what the program has in the kernel: with one mechanism, or with all.
func cleanup(ctx context.Context, o options, log *slog.Logger) error {
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	var errs []error
	for _, m := range mechanisms(config.Timeouts{}) {
		if o.backend == "" || o.backend == m.Name {
			errs = append(errs, remove(ctx, m, log))
		}
	}

	return errors.Join(append(errs, syncDevices(nil, log))...)
}

// remove removes what the program has in the kernel with a mechanism. One that the kernel lacks has
// nothing there.
func remove(ctx context.Context, m backends.Candidate, log *slog.Logger) error {
	if m.Name == ipvs.Name && !haveIPVS() {
		return nil
	}
	backend, err := m.Open()
	if errors.Is(err, kernelerr.ErrMissingModule) || errors.Is(err, kernelerr.ErrKernelTooOld) {
		return nil
	}
	if err != nil {
		return err
	}
	defer backend.Close()
	stats, err := dataplane.New(backend, nil).Cleanup(ctx)
	if err == nil && stats.Messages > 0 {
		log.Info("removed from the kernel", "backend", m.Name)
	}
	return err
}

// haveIPVS reports whether IPVS is loaded. Without it there are no virtual servers, and a request
// for them would load it.
func haveIPVS() bool {
	_, err := os.Stat("/proc/thread-self/net/ip_vs")
	return err == nil
}

// tell tells the service manager how the program is doing, if there is one (Type=notify).
func tell(state string) {
	_, _ = daemon.SdNotify(false, state) // it is only informative
}

// deviceInterval is the interval between comparisons of the devices' addresses with the wanted
// ones.
const deviceInterval = 2 * time.Second

// follow reads the file again on request, and keeps addresses on devices, until the context ends.
func (b *balancer) follow(ctx context.Context, file string, hangup <-chan os.Signal) error {
	tick := time.NewTicker(deviceInterval)
	defer tick.Stop()
	defer tell(daemon.SdNotifyStopping)
	for {
		b.bindAddresses(ctx)
		tell(daemon.SdNotifyWatchdog)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-hangup:
			b.reload(ctx, file)
		}
	}
}

// mechanisms are the kernel mechanisms, the default first.
func mechanisms(t config.Timeouts) []backends.Candidate {
	// Each service has its own drain time, so there is no common limit.
	return instance.Candidates("loadbalancer", ipvs.Config{DrainLimit: -1,
		Timeouts: ipvs.Timeouts(t)})
}

// openBackend opens the kernel mechanism of this name, which is known.
func openBackend(name string, t config.Timeouts) (backends.Backend, error) {
	l := mechanisms(t)
	return l[slices.IndexFunc(l, func(m backends.Candidate) bool { return m.Name == name })].Open()
}
