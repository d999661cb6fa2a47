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
	// a chain of the table does. Nil means the tables and chains of the default instances.
	Ours func(table, chain string) bool
}

// Checker checks a node. Make it with [NewChecker]. Several goroutines may call its method.
type Checker struct {
	cfg  Config
	turn chan struct{} // holds a token while a goroutine uses the fields below

	last *Report
	of   *servicemodel.Table // of the last report
	then counted             // compared with present numbers
	at   time.Time           // of then
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
	total, since := f.grown, c.at
	if now.Sub(c.at) > window {
		f.grown, since = counted{}, time.Time{}
		c.then, c.at = total, now
	} else {
		f.grown, f.over = total.since(c.then), now.Sub(c.at)
	}

	if now.Sub(c.at) > window/2 {
		c.then, c.at = total, now
	}
	r := &Report{At: now, Since: since, Findings: f.findings(held), Unknown: f.unknown}
	slices.SortStableFunc(r.Findings, Finding.compare)
	c.last = nil
	if ctx.Err() == nil && !since.IsZero() {
		c.last, c.of = r, held
	}
	return r
}

// oursByDefault knows the tables of instances with the default names, and the chains of the
// iptables backend with the default prefixes.
func oursByDefault(table, chain string) bool {
	return strings.HasPrefix(table, "kernlb") || strings.HasPrefix(chain, "KUBE-") ||
		strings.HasPrefix(chain, "KERNLB-")
}
