package node

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/servicemodel"
)

const (
	// fresh is the time for which a report is returned to further callers.
	fresh = 2 * time.Second
	// window is the maximum age of the values with which the current values are compared.
	window = 10 * time.Minute
)

// Config tunes a [Checker]. A nil *Config is the zero Config.
type Config struct {
	// NetNS names the network namespace of the node. Each report opens the namespace again.
	NetNS netns.Namespace
	// Ours reports whether a chain of an nf_tables table belongs to kernlb or, if chain is empty,
	// whether the whole table belongs to kernlb. Nil means the tables and chains of default
	// instances. Tables of the nftables and ipvs backends are also recognised by their contents,
	// whatever their names. So only a program that changes the prefix of its iptables chains needs
	// Ours ([iptables.Config.Prefix]).
	//
	// [iptables.Config.Prefix]: https://pkg.go.dev/github.com/kernlb/kernlb/iptables#Config
	Ours func(table, chain string) bool
	// Undone returns a sentence about repairs that another program keeps undoing
	// ([dataplane.Undone.String]), or nothing. Nil skips this check.
	//
	// [dataplane.Undone.String]: https://pkg.go.dev/github.com/kernlb/kernlb/dataplane#Undone
	Undone func() string
}

// Checker checks a node. Create it with [NewChecker]. Its method is safe for concurrent use.
type Checker struct {
	cfg  Config
	turn chan struct{} // holds a token while a goroutine uses the fields below

	last *Report
	of   *servicemodel.Table // of the last report
	// readings are the readings of the last ten minutes, the oldest first, at least five minutes
	// apart. The current values are compared with the oldest reading, so that a loss is reported
	// for at least five minutes.
	readings []reading
	newest   counted             // of the last report
	grew     [counters]time.Time // time of the last growth of each number
}

// reading is a snapshot of the kernel's counters, with its time.
type reading struct {
	counted
	at time.Time
}

// NewChecker returns a checker. Only [Checker.Report] reads the kernel.
func NewChecker(cfg *Config) *Checker {
	c := &Checker{cfg: *cmp.Or(cfg, &Config{}), turn: make(chan struct{}, 1)}
	if c.cfg.Ours == nil {
		c.cfg.Ours = oursByDefault
	}
	return c
}

// Report checks the node for the services in the kernel; a nil table means no services. It needs
// CAP_NET_ADMIN, and CAP_SYS_ADMIN for another network namespace. [Report.Unknown] lists the facts
// that could not be read, for example because ctx ended. If the last report is younger than two
// seconds, it is returned again. The caller must not change the report.
//
// Some faults are visible only as growing counters. So these faults are missing from the first
// report, and from a report ten minutes or more after the previous one: the [Report.Since] of such
// a report is zero. It is not returned again.
func (c *Checker) Report(ctx context.Context, held *servicemodel.Table) *Report {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return &Report{At: time.Now(), Findings: []Finding{}, Unknown: []string{
			"all: " + context.Cause(ctx).Error()}}
	}

	now := time.Now()
	if c.last != nil && c.of == held && now.Sub(c.last.At) < fresh {
		return c.last
	}
	f := c.cfg.read(ctx)
	if c.cfg.Undone != nil {
		f.undone = c.cfg.Undone()
	}
	since := c.compare(f, now)
	r := &Report{At: now, Since: since, Findings: f.findings(held), Unknown: f.unknown}
	slices.SortStableFunc(r.Findings, Finding.compare)
	c.last = nil
	if ctx.Err() == nil && !since.IsZero() {
		c.last, c.of = r, held
	}
	return r
}

// compare sets the growth of the values since the oldest reading, and returns the time of that
// reading, or zero if there is none.
func (c *Checker) compare(f *facts, now time.Time) time.Time {
	total := f.grown
	c.readings = slices.DeleteFunc(c.readings, func(r reading) bool {
		return now.Sub(r.at) > window
	})
	for i := range total {
		if total[i] > c.newest[i] {
			c.grew[i] = now
		}
		f.calm[i] = now.Sub(c.grew[i])
	}

	c.newest, f.grown = total, counted{}
	var since time.Time
	if len(c.readings) > 0 {
		since = c.readings[0].at
		f.grown, f.over = total.since(c.readings[0].counted), now.Sub(since)
	}

	if n := len(c.readings); n == 0 || now.Sub(c.readings[n-1].at) >= window/2 {
		c.readings = append(c.readings, reading{total, now})
	}
	return since
}

// oursByDefault recognises the tables of instances with the default names, and the chains of the
// iptables backend with the default prefixes.
func oursByDefault(table, chain string) bool {
	return strings.HasPrefix(table, "kernlb") || strings.HasPrefix(chain, "KUBE-") ||
		strings.HasPrefix(chain, "KERNLB-")
}
