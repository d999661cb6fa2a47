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

// figureFile has the figures of measure, as written to a file.
type figureFile struct {
	Kernel string `json:"kernel"`
	CPUs   int    `json:"cpus"`
	Load   string `json:"load_before_and_after"`
	Mix    string `json:"mix"`

	Costs       []cost        `json:"costs,omitempty"`
	First       []firstPacket `json:"first_packets,omitempty"`
	Established []established `json:"established,omitempty"`
}

// cost is the cost of a peer's syncs of a mix of services. CPU is the processor time of the peer
// and of the programs that it runs.
type cost struct {
	Peer          string  `json:"peer"`
	Services      int     `json:"services"`
	Endpoints     int     `json:"endpoints"`
	FullMs        float64 `json:"full_sync_ms"`
	FullCPUMs     float64 `json:"full_sync_cpu_ms"`
	EndpointMs    float64 `json:"one_endpoint_ms"`
	EndpointCPUMs float64 `json:"one_endpoint_cpu_ms"`
	ServiceMs     float64 `json:"one_service_ms,omitempty"` // one more service
}

// measurement is one run of measure.
type measurement struct {
	peers          []string
	services       []int
	sizes          []int
	endpoints      int // of each service; 0: as in the mix
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
	fs.IntVar(&m.endpoints, "endpoints", 0,
		"each service has so many; first packets then meet the numbers of services, not of sizes")
	fs.IntVar(&m.changes, "changes", 5, "how often one endpoint is replaced, and one service "+
		"added; the median counts")
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
	if m.endpoints > 0 {
		m.figures.Mix = fmt.Sprintf("services of %d endpoints", m.endpoints)
	}
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
	m.figures.tables(out)
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

// load returns n services: the mix, or services with the same number of endpoints.
func (m *measurement) load(n int) *mix {
	if m.endpoints > 0 {
		return newUniform(n, m.endpoints)
	}
	return newMix(n)
}

// kernelRelease names the kernel.
func kernelRelease() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown kernel"
	}
	return "Linux " + strings.TrimSpace(string(b))
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
			c, err := m.cost(ctx, name, m.load(n))
			if err != nil {
				return err
			}
			fmt.Fprintf(m.log, "one more service: %s\n", short(c.ServiceMs))
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
	full, err := p.sync(load.all())
	if err != nil {
		return c, err
	}
	c = cost{Peer: name, Services: load.services, Endpoints: load.endpoints(load.services),
		FullMs: milli(full.Took), FullCPUMs: milli(full.CPU)}
	median := func(next func(round int) *serve.Change, skip int) (took, cpu float64, err error) {
		var times, spent []time.Duration
		for i := range skip * m.changes {
			a, err := p.sync(next(i))
			if err != nil {
				return 0, 0, err
			}
			if i%skip == 0 {
				times, spent = append(times, a.Took), append(spent, a.CPU)
			}
		}

		slices.Sort(times)
		slices.Sort(spent)
		return milli(times[len(times)/2]), milli(spent[len(spent)/2]), nil
	}

	if c.EndpointMs, c.EndpointCPUMs, err = median(load.oneEndpoint, 1); err == nil {
		// every second round removes the service again, and does not count
		c.ServiceMs, _, err = median(load.oneService, 2)
	}

	return c, err
}

func milli(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
