package read

import (
	"fmt"
	"slices"

	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

const fullSet = "a set is full"

// Snapshot contains the readings of the tables of all families.
type Snapshot struct {
	Tables  []*Reading // by family; a table may not exist
	Version form.Version
	// Rules are the rules of the first table that has rules.
	Rules   servicemodel.Rules
	Records map[string]string // earlier values of sysctls
	Text    []string          // drift that concerns all tables
	Gen     uint32            // the generation of the ruleset when the reading began
}

// exists reports whether the instance has a table.
func (s *Snapshot) exists() bool {
	return slices.ContainsFunc(s.Tables, func(r *Reading) bool { return r.Exists })
}

// Compare marks the tables that must be replaced for a reason that concerns both families. crowded
// says that a set was full. If the version is missing, no program would notice another writer in
// one of the tables.
func (s *Snapshot) Compare(crowded bool) {
	if crowded {
		s.Text = append(s.Text, fullSet)
	}
	if s.Version.Number == 0 && s.exists() {
		s.Text = append(s.Text, "the tables have no version")
	}
	if s.Version.Unfinished {
		s.Text = append(s.Text, "the tables are not finished")
	}
	anew, full := len(s.Text) > 0, slices.Equal(s.Text, []string{fullSet})
	for _, r := range s.Tables {
		r.full = full && !r.Broken
		r.Broken = r.Exists && (r.Broken || anew)
		if len(r.records) > 0 {
			s.Records = r.records
		}
		switch {
		case r.Rules.MasqueradeMark == 0:
		case s.Rules.MasqueradeMark == 0:
			s.Rules = r.Rules
		case !s.Rules.Equal(r.Rules):
			r.Broken, r.full = true, false
			r.Text = []string{"the tables ip and ip6 were made for different settings"}
		}

		if anew && !r.otherLayout {
			r.Text = nil
		}
		if r.Broken && !s.Version.Unfinished && r.marked() {
			r.Held = &form.HeldObjects{Chains: r.Chains, Specs: r.Specs, Sizes: r.Sizes,
				Dormant: r.Dormant}
		}
	}
}

// OtherLayout reports whether another version of kernlb created a table.
func (s *Snapshot) OtherLayout() bool {
	return slices.ContainsFunc(s.Tables, func(r *Reading) bool { return r.otherLayout })
}

// Merge returns the table in the kernel. Only elements that are not as desired are interpreted.
func (s *Snapshot) Merge(want *servicemodel.Table) (*servicemodel.Table, error) {
	var c servicemodel.Contents
	for _, r := range s.Tables {
		if r.Stands() {
			c.Rules = r.Rules
		}
		if r.Stands() && len(r.Elems) > 0 {
			r.Interpret(&c)
		}
		s.Text = append(s.Text, r.Text...)
	}

	t, err := s.assemble(want, c)
	if err != nil {
		return nil, fmt.Errorf("nftables: contents of the kernel: %w", err)
	}
	return t, nil
}

// assemble returns the table in the kernel: the desired table without the missing objects, plus the
// objects that are left over. It shares memory with the desired table.
func (s *Snapshot) assemble(want *servicemodel.Table, left servicemodel.Contents) (
	*servicemodel.Table, error) {
	if want == nil || !slices.ContainsFunc(s.Tables, (*Reading).Stands) {
		return servicemodel.NewTable(left) // an error is a duplicate key or identity
	}
	c := &servicemodel.ChangeSet{}
	if rules := want.Rules(); !rules.Equal(left.Rules) {
		c.Rules = &servicemodel.Change[servicemodel.Rules]{Old: &rules, New: &left.Rules}
	}
	for _, r := range s.Tables {
		if !r.Stands() {
			r.incomplete = slices.Collect(objectsOf(r.Family, want))
		}
		if len(r.incomplete) > 0 {
			r.subtract(want, c)
		}
	}

	if len(left.Frontends)+len(left.Pools)+len(left.ClusterIPs)+len(left.Hairpins) > 0 {
		t, err := servicemodel.NewTable(left)
		if err != nil {
			return nil, err
		}
		more := servicemodel.Diff(nil, t)
		c.Frontends = append(c.Frontends, more.Frontends...)
		c.Pools = append(c.Pools, more.Pools...)
		c.ClusterIPs = append(c.ClusterIPs, more.ClusterIPs...)
		c.Hairpins = append(c.Hairpins, more.Hairpins...)
	}

	for h := range want.HealthChecks() { // the kernel does not hold health checks
		c.Health = append(c.Health, servicemodel.Change[servicemodel.HealthCheck]{Old: &h})
	}
	return want.Apply(c), nil
}

// subtract removes the incomplete objects from the desired table.
func (r *Reading) subtract(want *servicemodel.Table, c *servicemodel.ChangeSet) {
	addresses := map[string]*[]servicemodel.AddrChange{form.SetClusterIPs: &c.ClusterIPs,
		form.SetHairpins: &c.Hairpins}
	for _, o := range r.incomplete {
		if o.frontends == nil {
			l := addresses[o.set]
			*l = append(*l, servicemodel.AddrChange{Addr: o.addr})
		}

		for _, fe := range o.frontends {
			c.Frontends = append(c.Frontends, servicemodel.Change[servicemodel.Frontend]{Old: fe})
			internal, external := want.PoolsOf(fe)
			for _, pool := range []*servicemodel.Pool{internal, external} {
				if pool != nil { // all frontends of its service port are gone
					c.Pools = append(c.Pools, servicemodel.Change[servicemodel.Pool]{Old: pool})
				}
			}
		}
	}
}
