package nftables

import (
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/plan"
	"github.com/kernlb/kernlb/nftables/internal/read"
	"github.com/kernlb/kernlb/servicemodel"
)

// remember makes one observation of both tables, and records the reading as the state of the
// kernel.
func (b *backend) remember(s *read.Snapshot, t *servicemodel.Table) *backends.Observation {
	o := &backends.Observation{Table: t, Drift: s.Text, OtherLayout: s.OtherLayout()}
	for i, r := range s.Tables {
		b.pl.Tables[i].Observed(r.Skeleton, r.Drift, r.Index)
		o.Partial = o.Partial || r.Partial
	}

	switch {
	case !s.Version.Unswept:
		b.sweep = nil
	case b.sweep == nil || b.pl.Version != s.Version: // nothing tells what another writer left
		b.sweep = plan.SweepAll(t)
	default:
		b.sweep.Table = t
	}

	b.pl.Sysctls = b.pl.Sysctls.Read(s.Records, s.Rules.MasqueradeMark != 0)
	b.pl.Observed(t.Rules(), s.Version)
	b.observed = true
	return o
}

// integrityOf compares the last known state of a table with the result of a check.
func integrityOf(known, now *form.Skeleton) backends.Integrity {
	if now.Exists != known.Exists || now.Broken || now.Stale || !now.Shape.Equal(&known.Shape) {
		return backends.Broken
	}
	result := backends.Intact
	for name, n := range known.Counts {
		got, counted := now.Counts[name]
		if counted && got != n {
			return backends.Broken
		}
		if !counted {
			result = backends.Touched
		}
	}

	return result
}
