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
	// fresh is how long a report is given to further callers.
	fresh = 2 * time.Second
	// window is how old the numbers may be with which present ones are compared.
	window = 10 * time.Minute
)

// Config tunes a [Checker]. A nil *Config is the zero Config.
type Config struct {
	// NetNS names the network namespace of the node. Each report opens it again.
	NetNS netns.Namespace
	// Ours says whether a table of nf_tables belongs to kernlb, if chain is empty, or else whether
	// a chain of the table does. Nil means the tables and chains of the default instances. The
	// tables of nftables and ipvs are known also by what they contain, whatever their names are,
	// so only a program with other chains of iptables needs Ours ([iptables.Config.Prefix]).
	//
	// [iptables.Config.Prefix]: https://pkg.go.dev/github.com/kernlb/kernlb/iptables#Config
	Ours func(table, chain string) bool
}

// Checker checks a node. Make it with [NewChecker]. Several goroutines may call its method.
type Checker struct {
	cfg  Config
	turn chan struct{} // holds a token while a goroutine uses the fields below

	last *Report
	of   *servicemodel.Table // of the last report
	// readings are numbers of at most the last ten minutes, the oldest first, at least five minutes
	// apart. The oldest is compared with present numbers, so that a loss is reported for five
	// minutes at least.
	readings []reading
	newest   counted             // of the last report
	grew     [counters]time.Time // when a report last found each number grown
}

// reading is what the kernel had counted at some time.
type reading struct {
	counted
	at time.Time
}

// NewChecker returns a checker, which has read nothing yet.
func NewChecker(cfg *Config) *Checker {
	c := &Checker{cfg: *cmp.Or(cfg, &Config{}), turn: make(chan struct{}, 1)}
	if c.cfg.Ours == nil {
		c.cfg.Ours = oursByDefault
	}
	return c
}

// Report checks the node for the services that the kernel holds; nil means that it holds none. It
// needs CAP_NET_ADMIN, and CAP_SYS_ADMIN for another network namespace. [Report.Unknown] says what
// it could not read, also because ctx ended. A report younger than two seconds is returned again.
// The caller must not change the report.
//
// Some faults show only in the growth of counters. So the first report does not have them, nor one
// that comes ten minutes after the last one: its [Report.Since] is zero. Such a report is not
// returned again.
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
	since := c.compare(f, now)
	r := &Report{At: now, Since: since, Findings: f.findings(held), Unknown: f.unknown}
	slices.SortStableFunc(r.Findings, Finding.compare)
	c.last = nil
	if ctx.Err() == nil && !since.IsZero() {
		c.last, c.of = r, held
	}
	return r
}

// compare sets what was counted since the oldest reading, and returns the time of that reading,
// zero if there is none.
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

// oursByDefault knows the tables of instances with the default names, and the chains of the
// iptables backend with the default prefixes.
func oursByDefault(table, chain string) bool {
	return strings.HasPrefix(table, "kernlb") || strings.HasPrefix(chain, "KUBE-") ||
		strings.HasPrefix(chain, "KERNLB-")
}
