//go:build unix

// Command mutate changes the library in small ways, and reports the changes that no test detects.
//
// Usage: mutate [-n N] [-seed S] [-only TEXT] [-v] [PACKAGE[,HOLDER...]...]
//
// It draws N mutants from all packages (directories), by default the packages in mutated: an
// operator becomes another one, a constant differs by one, a condition is negated, a statement or
// an error is left out. It compiles all drawn mutants into the tests, and an environment variable
// selects one at a time. First, each test runs alone, without a mutant, to learn how long the test
// takes and which mutants it reaches. For a mutant, the tests of its package and of the holders
// that reach it run. Fast tests run together, until one fails. Slow tests run only for mutants that
// survived the fast tests. A test kills the mutant if the test fails or hangs. Holders are other
// packages whose tests check the behaviour of the package.
//
// Each survivor is printed, and makes the command fail. Mutants without an effect that a caller or
// the kernel can see are listed with the reason in equivalent.txt, and are not drawn.
package main

import (
	"cmp"
	_ "embed"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"
)

// mutated are the packages that are mutated by default, each with its holders. The package that
// takes longest is the last.
var mutated = []string{"servicemodel,servicemodel/kube,dataplane",
	"servicemodel/kube,servicemodel/kube/manifest", "dataplane,dataplane/memory,dataplane/health",
	"dataplane/checks", "conntrack,dataplane/flows", "examples/cni", "ipvs", "iptables",
	"nftables/internal/form,nftables", "nftables/internal/plan,nftables",
	"nftables/internal/read,nftables", "nftables"}

// equivalent lists mutants by their keys, each in a line. The reason follows in a line that begins
// with a tab.
//
//go:embed equivalent.txt
var equivalent string

var start, _ = os.Getwd()

func main() {
	n := flag.Int("n", 200, "how many `mutants` to draw")
	seed := flag.Uint64("seed", 1, "of the draw")
	only := flag.String("only", "", "try only drawn mutants whose line has this `text`")
	verbose := flag.Bool("v", false, "print each mutant, and the test that kills it")
	flag.Parse()
	packages := flag.Args()
	if len(packages) == 0 {
		packages = mutated
	}
	survivors, err := mutate(*n, *seed, *only, *verbose, packages)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
	}
	if survivors > 0 || err != nil {
		os.Exit(1)
	}
}

// mutate runs tests with mutants, and returns the number of survivors.
func mutate(n int, seed uint64, only string, verbose bool, args []string) (survivors int,
	err error) {
	units, all, read := make([]*unit, len(args)), map[string]*mutant{}, map[string]bool{}
	for i, arg := range args {
		dir, _, _ := strings.Cut(arg, ",")
		if units[i], err = load(dir); err != nil {
			return 0, err
		}
		for _, m := range units[i].mutants {
			name, _, _ := strings.Cut(m.key, " ")
			all[m.key], read[name] = m, true
		}
	}

	for line := range strings.Lines(equivalent) {
		key := strings.TrimSuffix(line, "\n")
		if name, _, _ := strings.Cut(key, " "); all[key] != nil {
			all[key].equivalent = true
		} else if read[name] {
			return 0, fmt.Errorf("equivalent.txt names a mutant that does not exist: %s", key)
		}
	}

	drawn := draw(n, rand.New(rand.NewPCG(seed, 0)), units)
	tests, err := newSuites(units, drawn)
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(tests.tmp)
	for i, u := range units {
		began, killed := time.Now(), 0
		drawn[i] = slices.DeleteFunc(drawn[i], func(m *mutant) bool {
			return !strings.Contains(m.key, only)
		})
		if len(drawn[i]) == 0 {
			continue
		}
		err := tests.try(drawn[i], strings.Split(args[i], ","), func(m *mutant, killer string) {
			if killer != "" {
				killed++
			}
			if name, change, _ := strings.Cut(m.key, " "); killer == "" || verbose {
				fate := cmp.Or(killer, map[bool]string{false: "no test reaches it"}[m.reached],
					"survived")
				fmt.Printf("%s:%d: %s (%s)\n", name, m.line, change, fate)
			}
		})
		if err != nil {
			return 0, err
		}
		survivors += len(drawn[i]) - killed
		fmt.Printf("%s: %d of %d mutants killed in %v\n", u.path, killed, len(drawn[i]),
			time.Since(began).Round(time.Second))
	}

	return survivors, nil
}

// draw draws mutants of all units together that compile, are not equivalent, and do not overlap.
func draw(n int, r *rand.Rand, units []*unit) [][]*mutant {
	var order [][2]int // unit, mutant
	for i, u := range units {
		for j := range u.mutants {
			order = append(order, [2]int{i, j})
		}
	}

	r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	drawn, number := make([][]*mutant, len(units)), 0
	for _, o := range order {
		u, m := units[o[0]], units[o[0]].mutants[o[1]]
		overlaps := slices.ContainsFunc(drawn[o[0]], func(d *mutant) bool {
			return d.file == m.file && d.from < m.to && m.from < d.to
		})
		if number < n && !m.equivalent && !overlaps && u.compiles(m) {
			number++
			m.number = number
			drawn[o[0]] = append(drawn[o[0]], m)
		}
	}

	return drawn
}
