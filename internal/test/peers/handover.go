package main

import (
	"context"
	_ "embed" // foreign rules
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane/kubeproxy"
	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// handoverCommand runs each mode of kube-proxy on a node that has rules and objects of other
// programs, and cleans up. Everything must then be as it was before.
func handoverCommand(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("handover", flag.ContinueOnError)
	back := fs.Bool("back", false, "from each backend of kernlb to kube-proxy")
	if err := fs.Parse(args); err != nil {
		return err
	}
	names, err := choosePeers(fs.Args())
	if err != nil {
		return err
	}
	if *back {
		return handBackAll(ctx, names, out)
	}
	var errs []error
	for _, name := range names {
		if !strings.HasPrefix(name, "kube-proxy-") {
			continue
		}
		plan, err := handOver(ctx, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}

		fmt.Fprintf(out, "%s: deleted %d rules, %d chains, %d tables, %d virtual servers, %d IP "+
			"sets, device %q; %d left\n", name, len(plan.Rules), len(plan.Chains),
			len(plan.Tables), len(plan.VirtualServers), len(plan.Sets), plan.Device, len(plan.Left))
	}

	return errors.Join(errs...)
}

// handOver runs one peer on a node with objects of other programs, and cleans up after it.
func handOver(ctx context.Context, name string) (*kubeproxy.Plan, error) {
	c, err := netnstest.New(ctx, netnstest.Options{})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	n := &node{ns: c.Node.NS, ipvs: haveIPVS()}
	if err := n.makeOthers(ctx); err != nil {
		return nil, err
	}
	before, err := n.objects(ctx)
	if err != nil {
		return nil, err
	}
	if err := runPeer(ctx, name, c); err != nil {
		return nil, err
	}

	// kube-proxy deletes virtual servers that it does not know
	if err := n.serveOthers(ctx); err != nil {
		return nil, err
	}
	plan, err := kubeproxy.Cleanup(ctx, &kubeproxy.Config{NetNS: n.ns.NetNS()})
	if legacy := strings.HasSuffix(name, "-legacy"); legacy != errors.Is(err, kubeproxy.ErrLegacy) {
		return nil, fmt.Errorf("legacy tables %t: %w", legacy, err)
	} else if err != nil && !legacy {
		return nil, err
	}

	after, err := n.objects(ctx)
	if err != nil {
		return nil, err
	}
	return plan, firstDifference(before, after)
}

// runPeer lets a peer apply some states, one after the other, and ends it.
func runPeer(ctx context.Context, name string, c *netnstest.Cluster) error {
	p, err := startPeer(ctx, name, c.Node.NS, settings(c, true), os.Stderr)
	if err != nil {
		return err
	}
	for i, sc := range scenarios(c) {
		if i%len(layouts) != 0 {
			continue
		}
		if _, err := p.sync(sc.change); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", sc.name, err), p.stop())
		}
	}

	return p.stop()
}

// firstDifference names the first line that differs.
func firstDifference(before, after string) error {
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	a, b = append(a, "the end"), append(b, "the end")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Errorf("line %d was %q, and is %q", i+1, a[i], b[i])
		}
	}

	return nil
}

// node is the namespace of a node, with objects of other programs.
type node struct {
	ns   *netnstest.NS
	ipvs bool
}

//go:embed testdata/others.rules
var othersRules string

// othersTable is a table of another program, with names that kube-proxy also uses.
const othersTable = `table inet kube-proxy {
	chain services {
		type filter hook input priority 10
	}
}
`

// makeOthers creates the objects of other programs.
func (n *node) makeOthers(ctx context.Context) error {
	for _, c := range []struct{ command, stdin string }{
		{"iptables-nft-restore --noflush", othersRules},
		{"ip6tables-nft-restore --noflush", othersRules},
		{"nft -f -", othersTable},
		{"ipset restore", "create blocked hash:ip,port\nadd blocked 192.0.2.66,tcp:80\n"},
	} {
		if _, err := runIn(ctx, n.ns, c.stdin, strings.Fields(c.command)...); err != nil {
			return err
		}
	}

	return n.serveOthers(ctx)
}

// serveOthers creates a virtual server of another program at an address of the node, unless it
// exists.
func (n *node) serveOthers(ctx context.Context) error {
	if !n.ipvs {
		return nil
	}
	to := netnstest.Net.NodeIPv4 + ":8443"
	list, err := runIn(ctx, n.ns, "", "ipvsadm", "-Sn")
	if err != nil || strings.Contains(list, to) {
		return err
	}
	_, err = runIn(ctx, n.ns, "", "ipvsadm", "-A", "-t", to, "-s", "rr")
	return err
}

// packetCounts are numbers that packets change.
var packetCounts = regexp.MustCompile(`packets \d+ bytes \d+|\[\d+:\d+\]`)

// objects returns the tools' listings of all kinds of objects that kube-proxy creates.
func (n *node) objects(ctx context.Context) (string, error) {
	commands := []string{"nft list ruleset", "iptables-nft-save", "ip6tables-nft-save",
		"ipset save", "ip -o link", "ip -o addr"}
	if n.ipvs {
		commands = append(commands, "ipvsadm -Sn")
	}
	var all strings.Builder
	for _, command := range commands {
		text, err := runIn(ctx, n.ns, "", strings.Fields(command)...)
		if err != nil {
			return "", err
		}
		lines := slices.DeleteFunc(strings.SplitAfter(text, "\n"), func(l string) bool {
			return strings.HasPrefix(l, "#") // has the time in it
		})
		fmt.Fprintf(&all, "%s\n%s", command,
			packetCounts.ReplaceAllString(strings.Join(lines, ""), "counted"))
	}

	return all.String(), nil
}
