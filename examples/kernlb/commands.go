package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/examples/command/suggest"
	"github.com/kernlb/kernlb/examples/command/version"
)

// command is one command of the program.
type command struct {
	name    string
	args    string // after the name, besides flags
	about   string
	example string // without "kernlb"
	flags   []definer
	check   func(*options) error // of several flags; nil: none
	run     func(*program, context.Context) error
}

// A definer defines flags that belong together. The flags check their own values.
type definer func(*options, *flag.FlagSet)

// commands returns all commands, in the order in which help lists them.
func commands() []command {
	return []command{
		{"apply", "-f FILE", "make the kernel hold exactly the services of the manifests",
			"apply -f services.yaml",
			[]definer{inputFlags, applyFlags, goOnFlag, emptyFlag, flowFlags, kernelFlags,
				outputFlag, nodeFlags, ipvsFlags}, checkInput, (*program).apply},
		{"watch", "-f DIR", "keep the kernel equal to a directory of manifests until interrupted",
			"watch -f /etc/kernlb -listen 127.0.0.1:10256",
			[]definer{inputFlags, watchFlags, emptyFlag, flowFlags, kernelFlags, outputFlag,
				nodeFlags, ipvsFlags}, checkWatch, (*program).watch},
		{"status", "", "print whether kernlb watch has problems: broken manifests, services that " +
			"are refused, objects that are in two files; the exit code is 1 then. Print what " +
			"clients meet; the exit code is 3 if some services have no endpoints. Print what the " +
			"checks of this node found; the exit code is 4 if it loses connections", "status",
			[]definer{statusFlags, outputFlag}, nil, (*program).status},
		{"plan", "-f FILE", "print what apply would change, and touch nothing",
			"plan -f services.yaml", []definer{inputFlags, goOnFlag, emptyFlag, statusFlags,
				kernelFlags, outputFlag, nodeFlags, ipvsFlags}, checkInput, (*program).plan},
		{"show", "", "print what is programmed now, its traffic counters, or how it differs from " +
			"manifests", "show -diff -f services.yaml",
			[]definer{inputFlags, filterFlags, showFlags, statusFlags, kernelFlags, outputFlag,
				nodeFlags, ipvsFlags}, checkShow, (*program).show},
		{"cleanup", "", "remove every trace, or that of kube-proxy", "cleanup -of kube-proxy -plan",
			[]definer{cleanupFlags, planFlag, kernelFlags, outputFlag, ipvsFlags}, checkCleanup,
			(*program).cleanup},
		{"probe", "", "print which backends this kernel supports, and why not the others", "probe",
			[]definer{kernelFlags, outputFlag, ipvsFlags}, nil, (*program).probe},
		{"trace", "-from IP -to IP:PORT/PROTOCOL",
			"say step by step what happens to a packet, by the manifests or by what the kernel " +
				"holds; with -live to a real packet, by whose rules; the exit code is 5 if " +
				"-until-lost found a lost packet",
			"trace -from 10.244.1.5 -to 10.96.0.10:80/tcp",
			[]definer{traceFlags, inputFlags, statusFlags, kernelFlags, outputFlag, nodeFlags,
				ipvsFlags}, checkTrace, (*program).trace},
		{"explain", "NAMESPACE/NAME", "print all that is known of a service: its frontends, " +
			"endpoints (with manifests), objects in the kernel, and why it refuses connections",
			"explain default/web -f services.yaml",
			[]definer{explainFlags, inputFlags, statusFlags, kernelFlags, nodeFlags, ipvsFlags},
			checkExplain, (*program).explain},
		{"diagnose", "NAMESPACE/NAME or ADDRESS:PORT/PROTOCOL", "connect to a service as a " +
			"client would, and to each of its endpoints; name the first thing that is wrong, " +
			"and what to do; the exit code is 5 then",
			"diagnose default/web -f services.yaml -from 10.244.1.5",
			[]definer{diagnoseFlags, inputFlags, statusFlags, kernelFlags, outputFlag, nodeFlags,
				ipvsFlags}, checkDiagnose, (*program).diagnose},
		{"top", "", "show live which services have connections, packets and bytes, the shares of " +
			"endpoints, recent changes, and how long applies take", "top -interval 5s",
			[]definer{topFlags, kernelFlags}, nil, (*program).top},
		{"count", "", "count connections, packets and bytes of frontends and endpoints from now " +
			"on, for show -counters, or stop that; ipvs counts all the time", "count -off",
			[]definer{countFlags, kernelFlags}, nil, (*program).count},
		{"graph", "", "draw services, frontends, pools and endpoints, by the manifests or by " +
			"what the kernel holds, or the way of a packet through the chains of all programs",
			"graph -hooks IPv4 -format svg", []definer{graphFlags, inputFlags, filterFlags,
				kernelFlags, nodeFlags, ipvsFlags}, nil, (*program).graph},
		{"flows", "", "print the flows of services, counts, and how full the table is",
			"flows -watch -service default/web", []definer{flowsFlags, serviceFlag, statusFlags,
				kernelFlags, outputFlag, ipvsFlags}, nil, (*program).flows},
		{"tune", "", "set the limits and timeouts of conntrack", "tune -plan",
			[]definer{tuneFlags, planFlag, outputFlag}, nil, (*program).tune},
		{"version", "", "print the version", "version", nil, nil,
			func(p *program, _ context.Context) error {
				_, err := fmt.Fprintln(p.stdout, version.Of("kernlb"))
				return err
			}},
	}
}

const hint = "kernlb -h lists the commands"

// flagSet returns the flags of a command.
func (c *command) flagSet(o *options) *flag.FlagSet {
	fs := flag.NewFlagSet("kernlb "+c.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	for _, define := range c.flags {
		define(o, fs)
	}
	return fs
}

// parse reads a command line: a command, followed by flags and an object. If the user asks for
// help, parse prints it and returns flag.ErrHelp.
func parse(o *options, args []string, stdout io.Writer) (*command, error) {
	all := commands()
	if len(args) == 0 {
		return nil, errors.New("no command given: " + hint)
	}
	help := []string{"-h", "-help", "--help", "help"}
	if slices.Contains(help, args[0]) {
		if len(args) == 1 || slices.Contains(help, args[1]) {
			fmt.Fprint(stdout, "usage: kernlb COMMAND [flags]\n\ncommands:\n")
			for _, c := range all {
				printWrapped(stdout, fmt.Sprintf("  %-9s", c.name), 11, c.about)
			}
			fmt.Fprintln(stdout, "\nkernlb COMMAND -h shows its flags, and an example.")
			return nil, flag.ErrHelp
		}

		args = []string{args[1], "-h"}
	}

	c, err := commandOf(all, args[0])
	if err != nil {
		return nil, err
	}
	fs := c.flagSet(o)
	for args = args[1:]; len(args) > 0; {
		if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
			c.printUsage(stdout)
			return nil, err
		} else if err != nil {
			return nil, c.flagError(fs, err, all)
		}

		if args = fs.Args(); len(args) > 0 {
			if c.name != "explain" && c.name != "diagnose" || o.about != "" {
				return nil, fmt.Errorf("%s does not take %q, which is no flag; %s", c.name, args[0],
					c.hint())
			}

			o.about, args = args[0], args[1:]
		}
	}

	if o.ipvs.StrictARP && o.ipvs.Device == "" {
		return nil, errors.New("-ipvs-strict-arp needs -ipvs-device")
	}
	if c.check == nil {
		return c, nil
	}
	return c, c.check(o)
}

// commandOf returns the command of a name.
func commandOf(all []command, name string) (*command, error) {
	if name == "-version" || name == "--version" {
		name = "version"
	}
	var names []string
	for i := range all {
		if all[i].name == name {
			return &all[i], nil
		}
		names = append(names, all[i].name)
	}

	if strings.HasPrefix(name, "-") {
		return nil, fmt.Errorf("%s: flags come behind the command; %s", name, hint)
	}
	return nil, fmt.Errorf("%w; %s", unknown("command", name, names), hint)
}

func (c *command) hint() string { return "kernlb " + c.name + " -h lists its flags" }

// flagError returns an error of package flag with a hint instead of the list of all flags.
func (c *command) flagError(fs *flag.FlagSet, err error, all []command) error {
	name, undefined := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !undefined {
		return err
	}
	var takers, known []string
	for _, other := range all {
		if other.flagSet(&options{}).Lookup(name) != nil {
			takers = append(takers, other.name)
		}
	}

	if len(takers) > 0 {
		return fmt.Errorf("-%s is for %s, not for %s; %s", name, strings.Join(takers, ", "), c.name,
			c.hint())
	}

	fs.VisitAll(func(f *flag.Flag) { known = append(known, "-"+f.Name) })
	return fmt.Errorf("%w; %s", unknown("flag", "-"+name, known), c.hint())
}

// unknown returns the error for an unknown word.
func unknown(what, word string, known []string) error {
	if meant, ok := suggest.Nearest(word, known); ok {
		return fmt.Errorf("there is no %s %q; did you mean %s?", what, word, meant)
	}
	return fmt.Errorf("there is no %s %q", what, word)
}

// printUsage prints the purpose of the command, and its flags.
func (c *command) printUsage(w io.Writer) {
	fmt.Fprintf(w, "%s [flags]\n\n", strings.TrimSpace("usage: kernlb "+c.name+" "+c.args))
	printWrapped(w, "", 0, strings.ToUpper(c.about[:1])+c.about[1:]+".")
	fmt.Fprintf(w, "\nexample:\n  kernlb %s\n", c.example)
	node := flag.NewFlagSet("", flag.ContinueOnError)
	nodeFlags(&options{}, node)
	titleOf := func(f *flag.Flag) string {
		switch {
		case strings.HasPrefix(f.Name, "ipvs-"):
			return "flags of ipvs"
		case node.Lookup(f.Name) != nil:
			return "flags of the node"
		}

		return "flags"
	}

	for _, title := range []string{"flags", "flags of the node", "flags of ipvs"} {
		first := true
		c.flagSet(&options{}).VisitAll(func(f *flag.Flag) {
			if titleOf(f) != title {
				return
			}
			if first {
				fmt.Fprintf(w, "\n%s:\n", title)
			}
			first = false
			value, text := flag.UnquoteUsage(f)
			if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0s" {
				text += " (default " + f.DefValue + ")"
			}
			fmt.Fprintln(w, strings.TrimRight("  -"+f.Name+" "+value, " "))
			printWrapped(w, "      ", 6, text)
		})
	}
}

// printWrapped prints a text after the beginning of its first line, in indented lines of 90
// columns.
func printWrapped(w io.Writer, line string, indent int, text string) {
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
			line += word
		case len(line)+1+len(word) > 90:
			fmt.Fprintln(w, line)
			line = strings.Repeat(" ", indent) + word
		default:
			line += " " + word
		}
	}

	fmt.Fprintln(w, line)
}
