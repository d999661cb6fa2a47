package law

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/servicemodel"
)

// Kernel is a network namespace in which the user has rules, and other programs do damage with nft.
type Kernel struct {
	*netnstest.NS
	// Tables are the tables in which an instance has objects, such as "ip kernlb".
	Tables [2][]string
	// Ours reports whether a chain or set belongs to an instance.
	Ours func(at int, name string) bool
	// UserChains are the chains for rules of the user.
	UserChains []string
	// Always says that the user's rules outlive the instance.
	Always bool

	faults *rawnltest.Faults
	rules  []userRule
	added  uint16 // counts the rules
}

// userRule is a rule of the user.
type userRule struct {
	at     int
	family servicemodel.Family
	chain  string // such as "ip kernlb user-first"
	text   string
}

// NewKernel returns a namespace that lives until the test ends.
func NewKernel(t *testing.T) *Kernel {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nft is not installed (Debian package nftables)")
	}
	return &Kernel{NS: nstest.New(t)}
}

// Machine returns the namespace for another sequence. In half of them, the user has rules.
func (k *Kernel) Machine(r *rand.Rand, m Machine) *Machine {
	k.FlushAll(0, nil)
	k.faults = rawnltest.NewFaults()
	m.Touch = k.touch
	if r.IntN(2) == 0 {
		m.Users = k
	}
	m.Fault = func(r *rand.Rand) (string, func()) {
		all := rawnltest.All()
		fault, n := all[r.IntN(len(all))], 1+r.IntN(12)
		k.faults.Arm(fault, n)
		return fmt.Sprintf("in call %d %s", n, fault.Name), func() { k.faults.Disarm() }
	}

	return &m
}

// Wrap makes a socket fail in the way of [Machine.Fault].
func (k *Kernel) Wrap(s rawnl.Socket) rawnl.Socket { return k.faults.Wrap(s) }

// Run runs a program in the namespace. If the damage is impossible, the program fails and does
// nothing.
func (k *Kernel) Run(input, program string, args ...string) string {
	var out []byte
	_ = k.NS.Do(func() (err error) {
		c := exec.Command(program, args...)
		c.Stdin = strings.NewReader(input)
		out, err = c.Output()
		return err
	})
	return string(out)
}

// Script returns a harm that runs a script of nft for each table of an instance, which the script
// calls TABLE.
func (k *Kernel) Script(name, script string) Harm {
	return Harm{Name: name, Do: func(at int, _ *rand.Rand) {
		for _, t := range k.Tables[at] {
			k.Run(strings.ReplaceAll(script, "TABLE", t), "nft", "-f", "-")
		}
	}}
}

// touch commits, and changes nothing.
func (k *Kernel) touch(int) {
	k.Run("add table ip foreign; delete table ip foreign", "nft", "-f", "-")
}

// FlushAll deletes everything.
func (k *Kernel) FlushAll(int, *rand.Rand) {
	k.Run("flush ruleset", "nft", "-f", "-")
	k.rules = nil
}

var (
	tableLine  = regexp.MustCompile(`^table (\w+ [\w-]+) {$`)
	objectLine = regexp.MustCompile(`^\t(chain|set|map) ([\w.-]+) {$`)
)

// FlushOne empties a chain or a set of the instance.
func (k *Kernel) FlushOne(at int, r *rand.Rand) {
	table, commands := "", []string(nil)
	for line := range strings.Lines(k.list(at)) {
		line = strings.TrimSuffix(line, "\n")
		if m := tableLine.FindStringSubmatch(line); m != nil {
			table = m[1]
		} else if m := objectLine.FindStringSubmatch(line); m != nil && k.Ours(at, m[2]) {
			commands = append(commands, fmt.Sprintf("flush %s %s %s", m[1], table, m[2]))
		}
	}

	if len(commands) > 0 {
		k.Run(commands[r.IntN(len(commands))], "nft", "-f", "-")
	}
}

// list lists the tables of an instance.
func (k *Kernel) list(at int) string {
	var own strings.Builder
	ours := false
	for line := range strings.Lines(k.Run("list ruleset", "nft", "-f", "-")) {
		if m := tableLine.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
			ours = slices.Contains(k.Tables[at], m[1])
		}
		if ours {
			own.WriteString(line)
		}
	}

	return own.String()
}

// Lost names the user's rules that are gone. It forgets rules that were removed with their table.
func (k *Kernel) Lost(at int, served map[servicemodel.Family]bool) (lost string) {
	found := k.list(at)
	k.rules = slices.DeleteFunc(k.rules, func(r userRule) bool {
		there := r.at == at && strings.Contains(found, r.text)
		if gone := r.at == at && !there; gone && (k.Always || served[r.family]) {
			lost += fmt.Sprintf("lost is a rule of %s: %s\n", r.chain, r.text)
		}
		return !there
	})
	k.add(at, found)
	return lost
}

// add adds a rule to each of the user's chains that exists and has no rule.
func (k *Kernel) add(at int, found string) {
	table, script := "", ""
	for line := range strings.Lines(found) {
		line = strings.TrimSuffix(line, "\n")
		if m := tableLine.FindStringSubmatch(line); m != nil {
			table = m[1]
		}
		m := objectLine.FindStringSubmatch(line)
		if m == nil || !slices.Contains(k.UserChains, m[2]) {
			continue
		}
		r := userRule{at: at, chain: table + " " + m[2], family: servicemodel.IPv4}
		if strings.HasPrefix(table, "ip6 ") {
			r.family = servicemodel.IPv6
		}
		if slices.ContainsFunc(k.rules, func(o userRule) bool { return o.chain == r.chain }) {
			continue
		}
		k.added++
		r.text = fmt.Sprintf("tcp dport %d counter packets 5 bytes 500 accept", k.added)
		script += "add rule " + r.chain + " " + r.text + "\n"
		k.rules = append(k.rules, r)
	}

	if script != "" {
		k.Run(script, "nft", "-f", "-")
	}
}
