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

// Kernel is a network namespace in which the user has rules, and others do harm with nft.
type Kernel struct {
	*netnstest.NS
	// Tables are the tables in which an instance has objects, such as "ip kernlb".
	Tables [2][]string
	// Ours says which chains and sets belong to an instance.
	Ours func(at int, name string) bool
	// UserChains are the chains for rules of the user, such as "ip kernlb user-first".
	UserChains [2][]string
	// Always says that the user's rules outlive the instance.
	Always bool

	faults *rawnltest.Faults
	rules  []userRule
}

// userRule is a rule of the user.
type userRule struct {
	at     int
	family servicemodel.Family
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

// Machine returns the namespace for another sequence.
func (k *Kernel) Machine(m Machine) *Machine {
	k.FlushAll(0, nil)
	k.faults = rawnltest.NewFaults()
	m.Users = k
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

// Run runs a program in the namespace. A harm that is impossible fails, and does nothing.
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

// Touch commits, and changes nothing.
func (k *Kernel) Touch(int, *rand.Rand) {
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
	var all strings.Builder
	for _, t := range k.Tables[at] {
		all.WriteString(k.Run("list table "+t, "nft", "-f", "-"))
	}
	return all.String()
}

// Add adds rules to the user's chains that exist.
func (k *Kernel) Add(at int) {
	n := len(k.rules)
	for i, chain := range k.UserChains[at] {
		family := servicemodel.IPv4
		if strings.HasPrefix(chain, "ip6 ") {
			family = servicemodel.IPv6
		}
		text := fmt.Sprintf("tcp dport %d counter packets 5 bytes 500 accept", 1+n+i)
		k.Run("add rule "+chain+" "+text, "nft", "-f", "-")
		k.rules = append(k.rules, userRule{at, family, text})
	}
	k.rules, _ = k.present()
}

// present tells the user's rules that are there from those that are not.
func (k *Kernel) present() (there, gone []userRule) {
	found := [2]string{k.list(0), k.list(1)}
	for _, r := range k.rules {
		if strings.Contains(found[r.at], r.text) {
			there = append(there, r)
		} else {
			gone = append(gone, r)
		}
	}
	return there, gone
}

// Lost says which of the user's rules are gone. It forgets those that went with their table.
func (k *Kernel) Lost(at int, served map[servicemodel.Family]bool) (lost string) {
	if len(k.rules) == 0 {
		return ""
	}
	var gone []userRule
	k.rules, gone = k.present()
	for _, r := range slices.DeleteFunc(gone, func(r userRule) bool {
		return !k.Always && (r.at != at || !served[r.family])
	}) {
		lost += fmt.Sprintf("lost is a rule of the user: %d %s\n", r.family, r.text)
	}
	return lost
}
