package nftables

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// Name is the name of this backend.
const Name = "nftables"

// defaultTable is the name of the tables if [Config.Table] is empty.
const defaultTable = "kernlb"

// Config configures a backend. A nil *Config is the zero Config.
type Config struct {
	// NetNS names the network namespace of the services.
	NetNS netns.Namespace
	// Table is the name of the tables in the families ip and ip6, and identifies the instance:
	// backends with different tables do not see each other. Empty means "kernlb". The name starts
	// with a letter and consists of letters, digits, "_", "-" and ".", at most 63 characters.
	Table string
	// TakeOver claims tables with that name even if they have none of the instance's marks. The
	// next commit replaces the tables and all their contents, and Cleanup deletes them. By default,
	// such tables are not touched, and a method that needs them fails with a
	// [backends.CollisionError].
	TakeOver bool
	// Priorities move the base chains relative to other programs' base chains. The zero value means
	// the usual priorities.
	Priorities Priorities
	// BeforeDispatch and BeforeMasquerade name user-defined chains in the tables of the instance,
	// such as "user-first". nat-prerouting and nat-output jump to the first chain before they look
	// up services, and nat-postrouting jumps to the second chain before it masquerades. Only new
	// connections reach these chains. If the chain accepts a packet, the instance ignores the
	// packet in that hook. If the chain returns, the packet continues as usual. The names begin
	// with "user-". Empty means no jump.
	//
	// The instance creates the chains empty, and never writes to them. So the rules in them outlive
	// all commits, repairs, restarts and upgrades. The rules are lost when their table is deleted:
	// by Cleanup, or when the node no longer serves the family. Do not put other chains or named
	// sets into the table. The rules should not refer to sets or chains of the instance: if the
	// backend must replace such an object, the kernel refuses, and the backend then deletes the
	// table with all user-defined rules.
	BeforeDispatch   string
	BeforeMasquerade string
	// Logger gets a debug record for each commit, and an info record if the sysctl route_localnet
	// is not restored because other programs rely on it. Nil disables logging.
	Logger *slog.Logger
}

func (c *Config) table() (string, error) {
	if c == nil || c.Table == "" {
		return defaultTable, nil
	}
	return c.Table, rendering.CheckTable(Name, c.Table)
}

func (c *Config) logger() *slog.Logger {
	if c == nil || c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger
}

// Priorities move base chains of an instance relative to other programs' base chains. Each value is
// added to a priority.
//
// The kernel runs all chains of type nat of a hook together, at the priorities -100 (destinations)
// and 100 (sources). A chain's own priority only orders it among these chains (nf_nat_register_fn).
// The first chain that translates a connection wins. So the chains of source ranges (-110) and of
// neighbours (-99) cannot be moved: they must run before and after the translation.
type Priorities struct {
	// DNAT moves nat-prerouting and nat-output (priority -100). Its range is -99 to 99. The kernel
	// refuses chains of type nat at -200 or below.
	DNAT int
	// Filter moves filter-input, filter-forward and filter-output (priority 0). Its range is -90 to
	// 199: after the translation of destinations, and before the kernel confirms the connection.
	Filter int
	// SNAT moves nat-postrouting (priority 100). Its range is -99 to 199.
	SNAT int
}

// hooks returns the configured hooks. The errors are *servicemodel.FieldError values.
func (c *Config) hooks() (h form.Hooks, err error) {
	if c == nil {
		return h, nil
	}
	prio := &c.Priorities
	h = form.Hooks{DNAT: prio.DNAT, Filter: prio.Filter, SNAT: prio.SNAT,
		Dispatch: c.BeforeDispatch, Masquerade: c.BeforeMasquerade}
	wrong := func(field string, value any, reason string) error {
		return &servicemodel.FieldError{Object: "nftables configuration", Field: field,
			Value: fmt.Sprint(value), Reason: reason}
	}

	for _, l := range []struct {
		field            string
		value, low, high int
	}{
		{"Priorities.DNAT", prio.DNAT, -99, 99}, {"Priorities.Filter", prio.Filter, -90, 199},
		{"Priorities.SNAT", prio.SNAT, -99, 199},
	} {
		if l.value < l.low || l.value > l.high {
			return h, wrong(l.field, l.value, fmt.Sprintf("must be from %d to %d", l.low, l.high))
		}
	}

	for _, c := range []struct{ field, name string }{
		{"BeforeDispatch", h.Dispatch}, {"BeforeMasquerade", h.Masquerade},
	} {
		switch {
		case c.name == "":
		case !rendering.IsTableName(c.name) || !strings.HasPrefix(c.name, form.UserPrefix):
			return h, wrong(c.field, c.name, fmt.Sprintf("must begin with %q and have letters, "+
				"digits, \"_\", \"-\" and \".\" only, %d bytes at most", form.UserPrefix,
				rendering.MostTableName))
		case h.Dispatch == h.Masquerade:
			return h, wrong(c.field, c.name, "must differ from the other chain")
		}
	}

	return h, nil
}
