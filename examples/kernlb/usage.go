package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/spell"
	"github.com/kernlb/kernlb/servicemodel"
)

const usage = `usage: kernlb COMMAND [flags]

commands:
  apply    make the kernel hold exactly the services of the manifests (-f)
  watch    keep the kernel equal to a directory of manifests (-f) until interrupted
  plan     print what apply would change; touches nothing
  show     print what the kernel holds now, all or some of it (-namespace, -service, -address,
           -port), what that has had (-counters, -conntrack), or how it differs from manifests
           (-diff -f)
  cleanup  remove every trace, or that of kube-proxy (-of kube-proxy)
  probe    print which backends this kernel supports, and why not the others
  trace    say step by step what happens to a packet (-from, -to), by the manifests (-f), or by
           what the kernel holds; with -live to a real packet, by whose rules
  explain  print all that is known of the service NAMESPACE/NAME: its frontends, endpoints (with the
           manifests, -f), objects in the kernel, and why it refuses connections; or which
           service wants an object of the kernel (-object)
  top      show live which services have connections, packets and bytes, the shares of endpoints,
           recent changes, and how long applies take
  count    count connections, packets and bytes of frontends and endpoints from now on, for show
           -counters, or stop it (-off); ipvs counts all the time
  graph    draw services, frontends, pools and endpoints, by the manifests (-f) or by what the
           kernel holds; with -hooks the way of a packet through the chains of all programs
  flows    print the flows of services, counts, and how full the table is
  tune     set the limits and timeouts of conntrack
  bench    measure the library in a network namespace of its own

flags:
`

// hint is where help is.
const hint = "kernlb -h lists commands and flags"

// flagsFor says for which commands a flag is, by its name or by how its name begins, with an
// asterisk. Those of flags that are not here are all.
var flagsFor = map[string]string{
	"f":                  "apply plan watch show trace explain graph",
	"from":               "trace",
	"to":                 "trace",
	"live":               "trace",
	"send":               "trace",
	"wait":               "trace",
	"changes":            "apply",
	"keep-going":         "apply plan",
	"allow-empty":        "apply plan watch",
	"copies":             "watch",
	"listen*":            "watch",
	"of":                 "cleanup",
	"plan":               "cleanup tune",
	"node":               needNode,
	"zone":               needNode,
	"node-ip":            needNode,
	"cluster-cidr":       needNode,
	"nodeport-addresses": needNode,
	"service-cidr":       needNode,
	"masquerade-*":       needNode,
	"annotations":        needNode,
	"keep-flows":         "apply watch",
	"connections":        "apply watch",
	"watch":              "flows",
	"service":            "flows show graph",
	"namespace":          "show graph",
	"address":            "show graph",
	"port":               "show graph",
	"diff":               "show",
	"object":             "explain",
	"counters":           "show",
	"page":               "top",
	"interval":           "top",
	"once":               "top",
	"conntrack":          "show",
	"off":                "count",
	"format":             "graph",
	"hooks":              "graph",
	"services":           "bench",
	"endpoints":          "bench",
	"flows":              "bench",
	"conntrack-*":        "tune",
	"lower":              "tune",
}

// needNode are the commands that resolve services.
const needNode = "apply plan watch show trace explain graph bench"

// takes returns an error if a flag that was given is not for the command.
func takes(command string, f *flag.Flag) error {
	for pattern, takers := range flagsFor {
		begin, more := strings.CutSuffix(pattern, "*")
		if f.Name != pattern && !(more && strings.HasPrefix(f.Name, begin)) {
			continue
		}
		if l := strings.Fields(takers); !slices.Contains(l, command) {
			return fmt.Errorf("-%s is for %s, not for %s; %s", f.Name, strings.Join(l, ", "),
				command, hint)
		}
	}
	return nil
}

// printUsage prints commands and flags.
func printUsage(fs *flag.FlagSet, w io.Writer) {
	fmt.Fprint(w, usage)
	fs.SetOutput(w)
	fs.PrintDefaults()
}

// arguments parses a command line: a command, what it is about if it is about something, and flags
// before, between and after them.
func arguments(fs *flag.FlagSet, args []string) (command, about string, err error) {
	for {
		if err := fs.Parse(args); err != nil {
			return "", "", flagError(fs, err)
		}
		if args = fs.Args(); len(args) == 0 {
			break
		}
		switch word := args[0]; {
		case command == "" && commands[word] != nil:
			command = word
		case command == "":
			err := unknown("command", word, slices.Sorted(maps.Keys(commands)))
			return "", "", fmt.Errorf("%w; %s", err, hint)
		case command == "explain" && about == "":
			about = word
		default:
			return "", "", fmt.Errorf("%s does not take %q, which is no flag; %s", command, word,
				hint)
		}
		args = args[1:]
	}
	if command == "" {
		return "", "", errors.New("what is to be done? " + hint)
	}
	fs.Visit(func(f *flag.Flag) { err = errors.Join(err, takes(command, f)) })
	return command, about, err
}

// checkExplain reads the service that explain is about.
func (o *options) checkExplain(command, about string) error {
	namespace, name, ok := strings.Cut(about, "/")
	o.explained = servicemodel.Name{Namespace: namespace, Name: name}
	switch {
	case command != "explain":
		return nil
	case o.object != "" && about != "":
		return fmt.Errorf("explain is about -object, or about the service %s", about)
	case o.object != "":
		return nil
	case !ok || namespace == "" || name == "":
		return fmt.Errorf("explain needs a service: NAMESPACE/NAME, not %q", about)
	case o.output == "json":
		return errors.New("explain prints text; show and trace print JSON")
	}
	return nil
}

// unknown is the error of a word that is none of those that are known.
func unknown(what, word string, known []string) error {
	if meant, ok := spell.Nearest(word, slices.Values(known)); ok {
		return fmt.Errorf("there is no %s %q; did you mean %s?", what, word, meant)
	}
	return fmt.Errorf("there is no %s %q", what, word)
}

// flagError is an error of package flag with a hint instead of all flags.
func flagError(fs *flag.FlagSet, err error) error {
	name, undefined := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !undefined {
		return err
	}
	var known []string
	fs.VisitAll(func(f *flag.Flag) { known = append(known, "-"+f.Name) })
	return fmt.Errorf("%w; %s", unknown("flag", "-"+name, known), hint)
}
