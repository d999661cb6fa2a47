package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
)

// change is what happens to the objects that a peer knows.
type change struct {
	Services     []*corev1.Service            `json:"services,omitempty"`
	Slices       []*discoveryv1.EndpointSlice `json:"slices,omitempty"`
	GoneServices []types.NamespacedName       `json:"goneServices,omitempty"`
	GoneSlices   []types.NamespacedName       `json:"goneSlices,omitempty"`
}

// settings is the configuration of a peer. All peers have the same one.
type settings struct {
	// NodeAddrs are the node's addresses, the primary ones first.
	NodeAddrs []netip.Addr
	// ClusterCIDRs are the ranges of pods. Without any, the peer cannot recognize pods.
	ClusterCIDRs []netip.Prefix
	ServiceCIDRs []netip.Prefix
	// IPv4Only leaves out kube-proxy's IPv6 half.
	IPv4Only bool
}

// nodeName is the name of the node under test.
const nodeName = "this"

// syncer is a peer inside its process.
type syncer interface {
	// sync delivers a change and returns when the kernel has it.
	sync(ctx context.Context, c *change) error
}

// makers make syncers by the peer's name, in the order in which they are shown.
var makers = []struct {
	name string
	make func(ctx context.Context, s *settings) (syncer, error)
}{
	{"kube-proxy-nftables", newKubeNFTables},
	{"kube-proxy-iptables", newKubeIPTables("nft")},
	{"kube-proxy-iptables-legacy", newKubeIPTables("legacy")},
	{"kube-proxy-ipvs", newKubeIPVS},
	{"kernlb-nftables", newKernlb(nftables.Name)},
	{"kernlb-iptables", newKernlb(iptables.Name)},
	{"kernlb-ipvs", newKernlb(ipvs.Name)},
}

// peerNames lists all peers.
func peerNames() []string {
	var l []string
	for _, m := range makers {
		l = append(l, m.name)
	}
	return l
}

// choosePeers returns the peers named, or those that the machine can run.
func choosePeers(args []string) ([]string, error) {
	if len(args) == 0 {
		return slices.DeleteFunc(peerNames(), func(n string) bool {
			return strings.HasSuffix(n, "-ipvs") && !haveIPVS()
		}), nil
	}
	for _, a := range args {
		if !slices.Contains(peerNames(), a) {
			return nil, fmt.Errorf("no peer %q: there are %s", a, strings.Join(peerNames(), ", "))
		}
	}
	return args, nil
}

// haveIPVS reports whether the kernel has IPVS, or can load it.
func haveIPVS() bool {
	_ = exec.Command("modprobe", "ip_vs").Run()
	_, err := os.Stat("/proc/net/ip_vs")
	return err == nil
}

// answer is the answer of a peer's process to a change.
type answer struct {
	Took  time.Duration `json:"took"`
	Error string        `json:"error,omitempty"`
}

// serveCommand is a peer's process. It reads changes from standard input until that ends, and
// writes answers to descriptor 3.
func serveCommand(ctx context.Context, args []string, _ io.Writer) error {
	if len(args) != 2 {
		return errors.New("serve is for the processes that peers starts itself")
	}
	var s settings
	if err := json.Unmarshal([]byte(args[1]), &s); err != nil {
		return err
	}
	answers := json.NewEncoder(os.NewFile(3, "answers"))
	i := slices.Index(peerNames(), args[0])
	if i < 0 {
		return fmt.Errorf("no peer %q", args[0])
	}
	p, err := makers[i].make(ctx, &s)
	if err != nil {
		return errors.Join(err, answers.Encode(answer{Error: err.Error()}))
	}
	if err := answers.Encode(answer{}); err != nil {
		return err
	}
	for in := json.NewDecoder(os.Stdin); ; {
		c := &change{}
		if err := in.Decode(c); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		start := time.Now()
		a := answer{}
		if err := p.sync(ctx, c); err != nil {
			a.Error = err.Error()
		}
		a.Took = time.Since(start)
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

// peer is a peer's process, seen from outside.
type peer struct {
	name string
	cmd  *exec.Cmd
	in   *json.Encoder
	out  *json.Decoder
	stop func() error
}

// startPeer starts a peer in the namespace of a node.
func startPeer(ctx context.Context, name string, node *netnstest.Host, s settings,
	stderr io.Writer) (*peer, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "serve", name, string(text))
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = []*os.File{w}, stderr, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = node.NS.Do(cmd.Start)
	w.Close()
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &peer{name: name, cmd: cmd, in: json.NewEncoder(stdin), out: json.NewDecoder(r)}
	p.stop = func() error { return errors.Join(stdin.Close(), r.Close(), cmd.Wait()) }
	if _, err := p.answer(); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// sync gives a change to the peer and returns how long it took.
func (p *peer) sync(c *change) (time.Duration, error) {
	if err := p.in.Encode(c); err != nil {
		return 0, fmt.Errorf("%s: %w", p.name, err)
	}
	return p.answer()
}

func (p *peer) answer() (time.Duration, error) {
	var a answer
	if err := p.out.Decode(&a); err != nil {
		return 0, fmt.Errorf("%s: its process ended: %w", p.name, err)
	}
	if a.Error != "" {
		return 0, fmt.Errorf("%s: %s", p.name, a.Error)
	}
	return a.Took, nil
}
