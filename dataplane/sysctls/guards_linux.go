package sysctls

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"syscall"

	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// Guards finds guards of [RouteLocalnet] in nf_tables. A guard is a chain named [GuardChain] that
// contains rules, or the rule of kube-proxy, the kubelet and the iptables backend in a chain
// …-FIREWALL of the table filter. It implements [Others] for a backend that needs only this sysctl.
type Guards struct {
	// NetNS names the network namespace to search.
	NetNS netns.Namespace
	// Table and Chain name the chain with this instance's own guard.
	Table, Chain string
}

// NewLoopback returns an Owner of the values that [Loopback] names. in runs a function on a thread
// that is in the network namespace.
func NewLoopback(in func(func() error) error, g Guards, log *slog.Logger) Owner {
	return Owner{Values: &Files{In: in}, Others: &g, Ours: map[string]string{RouteLocalnet: "1"},
		Logger: log}
}

// Earlier returns the earlier values that other instances have recorded. If a guard has no record,
// the sysctl was turned on by the guard's program and not by the administrator.
func (g *Guards) Earlier(ctx context.Context) (map[string]string, error) {
	earlier := map[string]string{}
	err := g.find(ctx, func(q nft.Query, chain string) error {
		was, err := recorded(ctx, q, chain)
		if was != "1" || earlier[RouteLocalnet] == "" {
			earlier[RouteLocalnet] = cmp.Or(was, "0")
		}
		return err
	})
	return earlier, err
}

// recorded returns the earlier value that a guard's instance has recorded, if any: in a set of its
// table, or in a chain next to the iptables guard.
func recorded(ctx context.Context, q nft.Query, guard string) (was string, err error) {
	name, isIptables := strings.CutSuffix(guard, "-FIREWALL")
	if !isIptables {
		lines, err := q.Comments(ctx, "settings")
		return ParseRecords(lines)[RouteLocalnet], err
	}

	q.Table = "nat"
	err = q.Rules(ctx, name+"-SETTINGS", func(r nft.RuleInfo) error {
		for _, where := range [][]byte{r.Exprs, r.UserData} {
			if _, text, ok := bytes.Cut(where, []byte(beforeLoopback)); ok {
				text, _, _ = bytes.Cut(text, []byte{0})
				was = string(text)
			}
		}
		return nil
	})
	if errors.Is(err, syscall.ENOENT) {
		err = nil // kube-proxy records nothing
	}
	return was, err
}

// Relied returns the sysctl if another program has a guard for it.
func (g *Guards) Relied(ctx context.Context, _ []string) (map[string]string, error) {
	relied := map[string]string{}
	err := g.find(ctx, func(q nft.Query, chain string) error {
		if q.Table != g.Table || chain != g.Chain {
			relied[RouteLocalnet] = "another program guards loopback addresses"
		}
		return nil
	})
	return relied, err
}

// guardReadings limits the number of readings of the chains of all tables. A commit by another
// program interrupts a reading, which may then skip a chain. If all readings are interrupted, a
// guard counts if any of them saw it.
const guardReadings = 3

// guardText is the comment of the rule in iptables.
const guardText = "block incoming localnet connections"

// find calls fn with the table and the chain of each guard.
func (g *Guards) find(ctx context.Context, fn func(q nft.Query, chain string) error) error {
	conn, err := rawnl.Dial(&rawnl.Config{NetNS: g.NetNS})
	if err != nil {
		return err
	}
	defer conn.Close()
	type id struct{ table, chain string }
	found := map[id]bool{} // whether any rule is a guard
	torn := true
	for try := 0; try < guardReadings && torn && err == nil; try++ {
		var req rawnl.Batch
		nft.AppendGetChains(&req, nft.IPv4)
		torn, err = conn.DumpThrough(ctx, &req, func(m rawnl.Message) error {
			c, err := nft.DecodeChain(m.Attrs)
			firewall := c.Table == "filter" && strings.HasSuffix(c.Name, "-FIREWALL")
			if c.Use > 0 && (firewall || c.Name == GuardChain) {
				found[id{c.Table, c.Name}] = c.Name == GuardChain
			}
			return err
		})
	}

	for c, guard := range found {
		if err != nil {
			break
		}
		q := nft.Query{Conn: conn, Family: nft.IPv4, Table: c.table}
		if !guard {
			err = q.Rules(ctx, c.chain, func(r nft.RuleInfo) error {
				guard = guard || bytes.Contains(r.Exprs, []byte(guardText)) ||
					bytes.Contains(r.UserData, []byte(guardText))
				return nil
			})
		}

		if err == nil && guard {
			err = fn(q, c.chain)
		}
		if errors.Is(err, syscall.ENOENT) {
			err = nil // the chain is gone
		}
	}

	return err
}
