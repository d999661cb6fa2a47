package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/internal/vmtest"
)

// defaultTools are the programs by which tests judge what a backend wrote.
const defaultTools = "ipvsadm conntrack ip ss nft " +
	"iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore " +
	"iptables-nft iptables-nft-save iptables-nft-restore " +
	"ip6tables-nft ip6tables-nft-save ip6tables-nft-restore " +
	"iptables-legacy iptables-legacy-save iptables-legacy-restore " +
	"ip6tables-legacy ip6tables-legacy-save ip6tables-legacy-restore"

// config is the command line.
type config struct {
	kernels  []string
	packages []string
	testArgs []string          // after --
	files    map[string]string // further ones, by their place in the guest

	run     string
	tags    string
	cover   string        // packages
	timeout time.Duration // for each package
	verbose bool
	noSkip  bool
	needed  *regexp.Regexp // tests that must run
	console bool

	options vmtest.Options // what goes through as it is
}

// parseFlags reads the arguments. Help and errors go to w.
func parseFlags(args []string, w io.Writer) (config, error) {
	var c config
	if i := slices.Index(args, "--"); i >= 0 {
		args, c.testArgs = args[:i], args[i+1:]
	}
	f := flag.NewFlagSet("kerneltest", flag.ContinueOnError)
	f.SetOutput(w)
	f.Usage = func() {
		fmt.Fprintln(w, "usage: kerneltest [flags] packages [-- arguments of the test binaries]")
		f.PrintDefaults()
	}
	c.testFlags(f)
	c.machineFlags(f)
	if err := f.Parse(args); err != nil {
		return config{}, err
	}
	c.packages = f.Args()
	if err := c.check(); err != nil {
		return config{}, fmt.Errorf("kerneltest: %w", err)
	}
	return c, nil
}

// testFlags are the flags that say what runs and what must pass.
func (c *config) testFlags(f *flag.FlagSet) {
	f.StringVar(&c.run, "run", "", "run only tests that match the `regexp`, as for go test")
	f.StringVar(&c.tags, "tags", "", "build `tags`, as for go build")
	f.StringVar(&c.cover, "coverpkg", "",
		"measure the coverage of these `packages`, as for go test; the profiles go to -results")
	f.DurationVar(&c.timeout, "timeout", 10*time.Minute, "limit for the tests of one package")
	f.BoolVar(&c.verbose, "v", true, "print each test's name; needed to count tests")
	c.files = map[string]string{}
	f.Func("file", "a file or directory for the guest, `place=source`, beside what tests bring "+
		"along; may be repeated", func(s string) error {
		place, source, ok := strings.Cut(s, "=")
		if !ok {
			return errors.New("want place=source")
		}
		c.files[place] = source
		return nil
	})
	f.BoolVar(&c.noSkip, "noskip", false, "count a skipped test as a failure")
	f.Func("need", "a `regexp`: in each package some test with such a name must pass, "+
		"and none may be skipped", func(s string) (err error) {
		c.needed, err = regexp.Compile(s)
		return err
	})
}

// machineFlags are the flags that say on what it runs.
func (c *config) machineFlags(f *flag.FlagSet) {
	o := &c.options
	c.kernels, o.Tools = list{"6.1"}, list(strings.Fields(defaultTools))
	f.Var((*list)(&c.kernels), "kernel",
		"kernel `series` or Debian suites, separated by commas or spaces; or all")
	f.Var((*list)(&o.Tools), "tools",
		"`programs` of this machine that the tests run in the guest")
	f.Var((*list)(&o.Modules), "modules",
		"kernel `modules` to load before the tests; others load themselves on first use")
	f.StringVar(&o.Init, "init", "",
		"the guest's init `program` (default guestinit, in the directory of this program)")
	f.BoolVar(&c.console, "console", false, "print the kernel's messages to standard error")
	f.IntVar(&o.Memory, "memory", vmtest.DefaultMemory, "memory of the VM in `MiB`")
	f.IntVar(&o.CPUs, "cpus", vmtest.DefaultCPUs, "processors of the VM")
	f.DurationVar(&o.BootTimeout, "boottimeout", vmtest.DefaultBootTimeout, "limit for the boot")
	f.StringVar(&o.ResultsDir, "results", "", "`directory` for files that tests leave in "+
		"$KERNLB_VM_RESULTS, in a subdirectory for each kernel")
	f.StringVar(&o.CacheDir, "cache", "", "`directory` for kernels and images "+
		"(default $KERNLB_VM_CACHE, or kernlb in the user's cache directory)")
	f.BoolVar(&o.Update, "update", false,
		"fetch the newest kernel even if there is one in the cache")
}

// list is a flag of words that are separated by commas or spaces.
type list []string

func (l *list) String() string { return strings.Join(*l, " ") }

func (l *list) Set(text string) error {
	*l = strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
	return nil
}

// check names every kernel by its series and refuses what cannot work.
func (c *config) check() error {
	if slices.Equal(c.kernels, []string{"all"}) {
		c.kernels = nil
		for _, r := range vmtest.Releases() {
			c.kernels = append(c.kernels, r.Name)
		}
	}
	switch {
	case len(c.kernels) == 0:
		return errors.New("-kernel is empty")
	case len(c.packages) == 0:
		return errors.New("no packages given, such as ./ipvs")
	case c.cover != "" && c.options.ResultsDir == "":
		return errors.New("-coverpkg needs -results")
	case c.noSkip && !c.verbose:
		return errors.New("-noskip needs -v: skips do not show without it")
	case c.needed != nil && !c.verbose:
		return errors.New("-need needs -v: tests do not show without it")
	}
	for i, k := range c.kernels {
		r, err := vmtest.FindRelease(k)
		if err != nil {
			return fmt.Errorf("-kernel: %w", err)
		}
		c.kernels[i] = r.Name
	}
	return nil
}

// args are the arguments of the test binaries.
func (c *config) args() []string {
	out := []string{fmt.Sprintf("-test.v=%t", c.verbose), "-test.timeout=" + c.timeout.String()}
	if c.run != "" {
		out = append(out, "-test.run="+c.run)
	}
	return append(out, c.testArgs...)
}
