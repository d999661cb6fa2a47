//go:build unix

// Command mutate changes the library in small ways, and reports the changes that no test sees.
//
// Usage: mutate [-n N] [-seed S] [-v] PACKAGE[,HOLDER...]...
//
// It draws N mutants of the packages (directories) together: an operator becomes another one, a
// constant differs by one, a condition is negated, a statement or an error is left out. It compiles
// all drawn mutants of a package into its tests, and an environment variable selects one at a time.
// A test of the package kills a mutant if it fails or hangs, or else a test of a holder does.
// Holders are other packages whose tests check the behaviour of the package.
//
// Each survivor is printed, and makes the command fail. Mutants that change nothing that a caller
// or the kernel can see are listed with the reason in equivalent.txt, and are not drawn.
package main

import (
	_ "embed"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"
)

// equivalent lists mutants by their keys, each in a line. The reason follows in a line that begins
// with a tab.
//
//go:embed equivalent.txt
var equivalent string

var start, _ = os.Getwd()

func main() {
	n := flag.Int("n", 200, "how many `mutants` to draw")
	seed := flag.Uint64("seed", 1, "of the draw")
	verbose := flag.Bool("v", false, "print each mutant")
	flag.Parse()
	survivors, err := mutate(*n, *seed, *verbose, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
	}
	if survivors > 0 || err != nil {
		os.Exit(1)
	}
}

// mutate runs tests with mutants, and returns how many survived.
func mutate(n int, seed uint64, verbose bool, args []string) (survivors int, err error) {
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
	for i, u := range units {
		began, killed := time.Now(), 0
		err := u.survivors(drawn[i], strings.Split(args[i], ","), func(m *mutant, survived bool) {
			if !survived {
				killed++
			}
			if name, change, _ := strings.Cut(m.key, " "); survived || verbose {
				fmt.Printf("%s:%d: %s%s\n", name, m.line, change, map[bool]string{
					false: " (killed)"}[survived])
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
	drawn := make([][]*mutant, len(units))
	for _, o := range order {
		u, m := units[o[0]], units[o[0]].mutants[o[1]]
		overlaps := slices.ContainsFunc(drawn[o[0]], func(d *mutant) bool {
			return d.file == m.file && d.from < m.to && m.from < d.to
		})
		if n > 0 && !m.equivalent && !overlaps && u.compiles(m) {
			drawn[o[0]] = append(drawn[o[0]], m)
			n--
		}
	}
	return drawn
}

// survivors reports of each mutant whether the tests in the directories let it survive.
func (u *unit) survivors(mutants []*mutant, dirs []string, report func(*mutant, bool)) error {
	if len(mutants) == 0 {
		return nil
	}
	tmp, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	suites, err := u.compile(tmp, mutants, dirs)
	if err != nil {
		return err
	}
	for i, m := range mutants {
		report(m, !slices.ContainsFunc(suites, func(s *suite) bool { return s.kills(i + 1) }))
	}
	return nil
}
