package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/peers/serve"
)

// figures of measure, as it writes them.
type figureFile struct {
	Kernel string `json:"kernel"`
	CPUs   int    `json:"cpus"`
	Load   string `json:"load_before_and_after"`
	Mix    string `json:"mix"`

	Costs       []cost        `json:"costs,omitempty"`
	First       []firstPacket `json:"first_packets,omitempty"`
	Established []established `json:"established,omitempty"`
}

// cost is what syncs of a mix of services cost a peer. CPU is the processor time of the peer and of
// the programs that it runs.
type cost struct {
	Peer          string  `json:"peer"`
	Services      int     `json:"services"`
	Endpoints     int     `json:"endpoints"`
	FullMs        float64 `json:"full_sync_ms"`
	FullCPUMs     float64 `json:"full_sync_cpu_ms"`
	EndpointMs    float64 `json:"one_endpoint_ms"`
	EndpointCPUMs float64 `json:"one_endpoint_cpu_ms"`
}

// measurement is one run of measure.
type measurement struct {
	peers          []string
	services       []int
	sizes          []int
	changes        int
	rounds, probes int
	figures        figureFile
	log            io.Writer
}

func measureCommand(ctx context.Context, args []string, out io.Writer) error {
	m := &measurement{log: os.Stderr}
	fs := flag.NewFlagSet("measure", flag.ContinueOnError)
	services := fs.String("n", "100,1000,10000", "numbers of services of the mix")
	sizes := fs.String("sizes", "1,25,100,400", "how many sizes of services the first packet meets")
	only := fs.String("only", "costs,first,established", "what is measured")
	into := fs.String("o", "figures.json", "the `FILE` that gets the figures; figures of kinds "+
		"that are not measured stay")
	fs.IntVar(&m.changes, "changes", 5, "how often one endpoint is replaced; the median counts")
	fs.IntVar(&m.rounds, "rounds", 9, "how often the packets of all peers are measured in turn; "+
		"the best median counts")
	fs.IntVar(&m.probes, "probes", 1000, "packets of one round")
	if err := fs.Parse(args); err != nil {
		return err
	}
	var err error
	if m.services, err = numbers(*services); err == nil {
		m.sizes, err = numbers(*sizes)
	}
	if err != nil {
		return err
	}
	if m.peers = fs.Args(); len(m.peers) == 0 {
		m.peers = []string{"kube-proxy-nftables", kubeNFTables137, "kernlb-nftables"}
	}
	if m.peers, err = choosePeers(m.peers); err != nil {
		return err
	}
	if text, err := os.ReadFile(*into); err == nil {
		if err := json.Unmarshal(text, &m.figures); err != nil {
			return fmt.Errorf("%s: %w", *into, err)
		}
	}
	m.figures.Kernel, m.figures.CPUs = kernelRelease(), runtime.NumCPU()
	m.figures.Mix, m.figures.Load = mixText, load()
	for _, kind := range strings.Split(*only, ",") {
		measure := map[string]func(context.Context) error{"costs": m.costs, "first": m.first,
			"established": m.established}[kind]
		if measure == nil {
			return fmt.Errorf("-only %s: there are costs, first and established", kind)
		}
		if err := measure(ctx); err != nil {
			return err
		}
	}
	m.figures.Load += ", " + load()
	text, err := json.MarshalIndent(&m.figures, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(*into, append(text, '\n'), 0o644)
}

// numbers parses a list with commas.
func numbers(s string) (l []int, err error) {
	for _, part := range strings.Split(s, ",") {
		var n int
		if _, err := fmt.Sscan(part, &n); err != nil || n < 1 {
			return nil, fmt.Errorf("%q: want positive numbers with commas in between", s)
		}
		l = append(l, n)
	}
	return l, nil
}

// load is the machine's load of the last minute.
func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(b), " ")
	return first
}

// costs measures the syncs of each peer with each number of services, for IPv4.
func (m *measurement) costs(ctx context.Context) error {
	m.figures.Costs = nil
	for _, n := range m.services {
		for _, name := range m.peers {
			fmt.Fprintf(m.log, "%d services, %s\n", n, name)
			c, err := m.cost(ctx, name, newMix(n))
			if err != nil {
				return err
			}
			m.figures.Costs = append(m.figures.Costs, c)
		}
	}
	return nil
}

func (m *measurement) cost(ctx context.Context, name string, load *mix) (c cost, err error) {
	ns, err := netnstest.NewNS("cost")
	if err != nil {
		return c, err
	}
	defer ns.Close()
	p, err := startPeer(ctx, name, ns, serve.Settings{IPv4Only: true}, os.Stderr)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	full, err := p.spend(load.all())
	if err != nil {
		return c, err
	}
	c = cost{Peer: name, Services: len(load.sizes), Endpoints: load.endpoints(),
		FullMs: milli(full.Took), FullCPUMs: milli(full.CPU)}
	var took, spent []time.Duration
	for i := range m.changes {
		a, err := p.spend(load.oneEndpoint(i))
		if err != nil {
			return c, err
		}
		took, spent = append(took, a.Took), append(spent, a.CPU)
	}
	slices.Sort(took)
	slices.Sort(spent)
	c.EndpointMs, c.EndpointCPUMs = milli(took[len(took)/2]), milli(spent[len(spent)/2])
	return c, nil
}

func milli(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
