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

	"github.com/kernlb/kernlb/internal/test/vm"
)

// defaultTools are the programs with which tests judge the work of a backend.
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
	quiet   bool           // the tests' output is printed only if something went wrong
	timeout time.Duration  // for each package
	needed  *regexp.Regexp // tests that must run

	options vmtest.Options // passed on unchanged
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

	c.flags(f)
	if err := f.Parse(args); err != nil {
		return config{}, err
	}
	c.packages = f.Args()
	if err := c.check(); err != nil {
		return config{}, fmt.Errorf("kerneltest: %w", err)
	}
	return c, nil
}

// flags defines the flags.
func (c *config) flags(f *flag.FlagSet) {
	o := &c.options
	c.kernels, o.Tools = []string{"6.1"}, strings.Fields(defaultTools)
	c.files = map[string]string{}
	f.StringVar(&c.run, "run", "", "run only tests that match the `regexp`, as for go test")
	f.BoolVar(&c.quiet, "quiet", false, "print the tests' output only if something went wrong")
	f.DurationVar(&c.timeout, "timeout", 10*time.Minute, "limit for the tests of one package")
	f.Func("file", "a file or directory for the guest, `place=source`, beside what tests bring "+
		"along; may be repeated", func(s string) error {
		place, source, ok := strings.Cut(s, "=")
		if !ok {
			return errors.New("want place=source")
		}
		c.files[place] = source
		return nil
	})

	f.Func("need", "a `regexp`: in each package some test with such a name must pass, "+
		"and none may be skipped", func(s string) (err error) {
		c.needed, err = regexp.Compile(s)
		return err
	})

	words := func(to *[]string, name, usage string) {
		f.Func(name, usage, func(text string) error {
			*to = strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
			return nil
		})
	}

	words(&c.kernels, "kernel",
		"kernel `series` or Debian suites, separated by commas or spaces; or all (default 6.1)")
	words(&o.Tools, "tools", "`programs` of this machine that the tests run in the guest "+
		"(default those with which tests judge a backend)")
	words(&o.KernelArgs, "append", "`words` for the kernel's command line")
	f.IntVar(&o.Memory, "memory", vmtest.DefaultMemory, "memory of the VM in `MiB`")
}

// check names every kernel by its series, and refuses flags that cannot work.
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
	out := []string{"-test.v", "-test.timeout=" + c.timeout.String()}
	if c.run != "" {
		out = append(out, "-test.run="+c.run)
	}
	return append(out, c.testArgs...)
}
