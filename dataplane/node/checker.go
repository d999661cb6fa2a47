package node

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/servicemodel"
)

const (
	// fresh is how long a report is given to further callers.
	fresh = 2 * time.Second
	// window is how old the numbers may be with which present ones are compared. Without such
	// numbers, a checker reads twice, a pause apart.
	window = 10 * time.Minute
	pause  = 500 * time.Millisecond
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
	cfg Config

	mu   sync.Mutex
	last *Report
	of   *servicemodel.Table // of the last report
	then counted             // compared with present numbers
	at   time.Time           // of then
}

// NewChecker returns a checker, which has read nothing yet.
func NewChecker(cfg *Config) *Checker {
	c := &Checker{cfg: *cmp.Or(cfg, &Config{})}
	if c.cfg.Ours == nil {
		c.cfg.Ours = oursByDefault
	}
	return c
}

// Report checks the node for the services that the kernel holds; nil means that it holds none. It
// needs CAP_NET_ADMIN, and CAP_SYS_ADMIN for another network namespace. [Report.Unknown] says what
// it could not read. The first report takes half a second longer, because what goes wrong now shows
// in the growth of counters; so does a report ten minutes after the last one. A report younger than
// two seconds is returned again. The caller must not change the report.
func (c *Checker) Report(ctx context.Context, held *servicemodel.Table) *Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.last != nil && c.of == held && now.Sub(c.last.At) < fresh {
		return c.last
	}
	if c.at.IsZero() || now.Sub(c.at) > window {
		c.then, c.at = c.cfg.count(ctx), now
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	f := c.cfg.read(ctx)
	total := f.grown
	f.grown, f.over = total.since(c.then), time.Since(c.at)
	r := &Report{At: now, Findings: f.findings(held), Unknown: f.unknown}
	slices.SortStableFunc(r.Findings, Finding.compare)
	if ctx.Err() == nil {
		c.last, c.of = r, held
	}
	if time.Since(c.at) > window/2 {
		c.then, c.at = total, time.Now()
	}
	return r
}

// oursByDefault knows the tables of instances with the default names, and the chains of the
// iptables backend with the default prefixes.
func oursByDefault(table, chain string) bool {
	return strings.HasPrefix(table, "kernlb") || strings.HasPrefix(chain, "KUBE-") ||
		strings.HasPrefix(chain, "KERNLB-")
}
