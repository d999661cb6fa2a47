package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/peers/serve"
	"github.com/kernlb/kernlb/servicemodel"
)

// The number of packets of a check, and the number of additional packets if two peers differ. The
// additional packets rule out chance.
const (
	firstTries = 8
	moreTries  = 64
)

func compareCommand(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("compare", flag.ContinueOnError)
	verbose := fs.Bool("v", false, "print each packet that differs, not only how many of a kind")
	reference := fs.String("with", "kernlb-nftables",
		"the `PEER` that the others are compared with")
	only := fs.String("only", "", "a `regexp`: compare only the scenarios with such a name")
	if err := fs.Parse(args); err != nil {
		return err
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	names, err := choosePeers(fs.Args())
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n == *reference })
	unexplained := 0
	for _, name := range names {
		c := &comparison{only: wanted, names: [2]string{*reference, name},
			kinds: map[string][]string{}}
		for _, told := range []bool{false, true} {
			if err := c.run(ctx, told); err != nil {
				return err
			}
		}

		unexplained += c.print(out, *verbose)
	}

	if unexplained > 0 {
		return fmt.Errorf("%d kinds of differences are not documented", unexplained)
	}
	return nil
}

// comparison compares the second peer with the first, the reference.
type comparison struct {
	names  [2]string
	only   *regexp.Regexp
	checks int
	// kinds are the packets with different outcomes, by the kind of difference.
	kinds map[string][]string
}

// side is one of the two peers, in its own network.
type side struct {
	cluster *netnstest.Cluster
	peer    *peer
	hosts   map[string]*netnstest.Host
}

func newSide(ctx context.Context, name string, told bool) (*side, error) {
	c, err := netnstest.New(ctx, netnstest.Options{})
	if err != nil {
		return nil, err
	}
	s := &side{cluster: c, hosts: map[string]*netnstest.Host{}}
	for _, h := range c.Hosts() {
		s.hosts[h.Name] = h
		for _, proto := range []servicemodel.Protocol{servicemodel.TCP, servicemodel.UDP} {
			if err := h.Serve(proto, targetPort); err != nil {
				return nil, errors.Join(err, c.Close())
			}
		}
	}

	if s.peer, err = startPeer(ctx, name, c.Node.NS, settings(c, told), os.Stderr); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return s, nil
}

// settings returns the settings of a peer in a network.
func settings(c *netnstest.Cluster, told bool) serve.Settings {
	set := serve.Settings{NodeAddrs: c.NodeAddrs(),
		ServiceCIDRs: prefixes(netnstest.Net.ServiceCIDRv4, netnstest.Net.ServiceCIDRv6)}
	if told {
		set.ClusterCIDRs = prefixes(netnstest.Net.ClusterCIDRv4, netnstest.Net.ClusterCIDRv6)
	}
	return set
}

func (s *side) close() error { return errors.Join(s.peer.stop(), s.cluster.Close()) }

// run compares all scenarios, with or without ranges by which the peers recognize pods.
func (c *comparison) run(ctx context.Context, told bool) (err error) {
	var sides [2]*side
	for i, name := range c.names {
		if sides[i], err = newSide(ctx, name, told); err != nil {
			return err
		}
		defer func() {
			// if ctx has ended, that is already an error, and it has ended the processes
			if closing := sides[i].close(); ctx.Err() == nil {
				err = errors.Join(err, closing)
			}
		}()
	}

	for _, sc := range scenarios(sides[0].cluster) {
		if sc.told != told || !c.only.MatchString(sc.name) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s: %s\n", c.names[1], sc.name)
		if err := c.scenario(ctx, sides, &sc); err != nil {
			return fmt.Errorf("%s: %w", sc.name, err)
		}
	}

	return nil
}

func (c *comparison) scenario(ctx context.Context, sides [2]*side, sc *scenario) error {
	var seen [2][]outcomes
	for i, s := range sides {
		if _, err := s.peer.sync(sc.change); err != nil {
			return err
		}
		seen[i] = s.ask(ctx, sc, sc.checks, firstTries)
	}

	var again []check
	for k, ch := range sc.checks {
		c.checks++
		if seen[0][k].String() != seen[1][k].String() {
			again = append(again, ch)
		}
	}

	for i, s := range sides {
		seen[i] = s.ask(ctx, sc, again, moreTries)
	}
	for k, ch := range again {
		if a, b := seen[0][k].String(), seen[1][k].String(); a != b {
			from := strings.TrimRight(ch.from, "0123456789")
			if ch.from == "pod2" && strings.Contains(sc.name, "here") {
				from = "pod that is an endpoint"
			}
			kind := fmt.Sprintf("%s from %s: %s, not %s", ch.what, from, seen[1][k].kind(),
				seen[0][k].kind())
			c.kinds[kind] = append(c.kinds[kind], fmt.Sprintf("%s: %s from %s to %s: %s, not %s",
				sc.name, ch.proto, ch.from, ch.to, b, a))
		}
	}

	return nil
}

// outcomes are the different outcomes of the packets of one check.
type outcomes map[string]bool

// String lists them.
func (o outcomes) String() string { return strings.Join(slices.Sorted(maps.Keys(o)), " or ") }

// kind is String without the names of servers.
func (o outcomes) kind() string {
	kinds := map[string]bool{}
	for k := range o {
		server, rest, ok := strings.Cut(k, " seeing ")
		if !ok {
			kinds[k] = true
			continue
		}

		where := "elsewhere"
		if strings.HasPrefix(server, "an ") {
			where = "somewhere"
		}
		if strings.HasPrefix(server, "pod") {
			where = "here"
		}
		if server == netnstest.Net.Internet || server == "node" {
			where = "by " + server
		}
		kinds["served "+where+" seeing "+rest] = true
	}

	return strings.Join(slices.Sorted(maps.Keys(kinds)), " or ")
}

// ask sends the packets of checks.
func (s *side) ask(ctx context.Context, sc *scenario, checks []check, tries int) []outcomes {
	var probes []netnstest.Probe
	for _, ch := range checks {
		for range tries {
			probes = append(probes, netnstest.Probe{From: s.hosts[ch.from], Proto: ch.proto,
				To: ch.to})
		}
	}

	seen := make([]outcomes, len(checks))
	for i, o := range netnstest.SendAll(ctx, probes) {
		k := i / tries
		if seen[k] == nil {
			seen[k] = outcomes{}
		}
		seen[k][s.describe(o, sc.sticky)] = true
	}

	return seen
}

// describe returns the outcome of a packet, without details that differ from packet to packet.
func (s *side) describe(o netnstest.Outcome, sticky bool) string {
	if o.Kind != netnstest.Answered {
		return string(o.Kind)
	}
	source := "another address"
	switch {
	case o.Source.Addr() == o.Local.Addr():
		source = "the client"
	case s.cluster.IsNodeAddr(o.Source.Addr()):
		source = "the node"
	}

	if sticky && o.Server != netnstest.Net.Internet {
		return "an endpoint seeing " + source
	}
	return o.Server + " seeing " + source
}

// print prints the kinds of differences, the most frequent first, each with its reason if one is
// known. It returns the number of kinds without a reason.
func (c *comparison) print(out io.Writer, verbose bool) int {
	fmt.Fprintf(out, "\n%s compared with %s: %d checks, %d kinds of differences\n", c.names[1],
		c.names[0], c.checks, len(c.kinds))
	kinds := slices.SortedFunc(maps.Keys(c.kinds), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(c.kinds[b]), len(c.kinds[a])), cmp.Compare(a, b))
	})
	without := 0
	for _, k := range kinds {
		why := reason(c.names[1], k, c.kinds[k])
		if why == "" {
			why = "NOT DOCUMENTED"
			without++
		}

		fmt.Fprintf(out, "%5d  %s\n       %s\n", len(c.kinds[k]), k, why)
		shown := c.kinds[k]
		if !verbose {
			shown = shown[:1]
		}
		for _, line := range shown {
			fmt.Fprintf(out, "         %s\n", line)
		}
	}

	return without
}
