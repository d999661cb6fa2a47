package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/peers/serve"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
)

// makers make syncers by the peer's name, in the order in which they are shown.
var makers = []serve.Maker{
	{Name: "kube-proxy-nftables", Make: newKubeNFTables},
	{Name: "kube-proxy-iptables", Make: newKubeIPTables("nft")},
	{Name: "kube-proxy-iptables-legacy", Make: newKubeIPTables("legacy")},
	{Name: "kube-proxy-ipvs", Make: newKubeIPVS},
	{Name: "kernlb-nftables", Make: newKernlb(nftables.Name)},
	{Name: "kernlb-iptables", Make: newKernlb(iptables.Name)},
	{Name: "kernlb-ipvs", Make: newKernlb(ipvs.Name)},
}

// kubeNFTables137 is the peer in a separate program, in the directory of this one.
const (
	kubeNFTables137 = "kube-proxy-1.37-nftables"
	program137      = "peers-1.37"
)

// programOf returns the program that runs a peer.
func programOf(peer string) (string, error) {
	self, err := os.Executable()
	if err == nil && peer == kubeNFTables137 {
		self = filepath.Join(filepath.Dir(self), program137)
	}
	return self, err
}

// peerNames lists all peers.
func peerNames() []string {
	l := []string{kubeNFTables137}
	for _, m := range makers {
		l = append(l, m.Name)
	}
	return l
}

// choosePeers returns the named peers, or all peers that the machine can run.
func choosePeers(args []string) ([]string, error) {
	if len(args) == 0 {
		return slices.DeleteFunc(peerNames(), func(n string) bool {
			program, err := programOf(n)
			if err == nil {
				_, err = os.Stat(program)
			}
			return err != nil || strings.HasSuffix(n, "-ipvs") && !haveIPVS()
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

// serveCommand is the process of a peer whose maker is here.
func serveCommand(ctx context.Context, args []string, _ io.Writer) error {
	return serve.Command(ctx, args, makers)
}

// peer is a peer's process, seen from outside.
type peer struct {
	name string
	cmd  *exec.Cmd
	in   *json.Encoder
	out  *json.Decoder
	stop func() error
}

// startPeer starts a peer in a namespace.
func startPeer(ctx context.Context, name string, ns *netnstest.NS, s serve.Settings,
	stderr io.Writer) (*peer, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	program, err := programOf(name)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, "serve", name, string(text))
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
	err = ns.Do(cmd.Start)
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

// sync gives a change to the peer, and returns the cost.
func (p *peer) sync(c *serve.Change) (serve.Answer, error) {
	if err := p.in.Encode(c); err != nil {
		return serve.Answer{}, fmt.Errorf("%s: %w", p.name, err)
	}
	return p.answer()
}

func (p *peer) answer() (a serve.Answer, err error) {
	if err := p.out.Decode(&a); err != nil {
		return a, fmt.Errorf("%s: its process ended: %w", p.name, err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("%s: %s", p.name, a.Error)
	}
	return a, nil
}

// runIn runs a program in a namespace, and returns what it prints.
func runIn(ctx context.Context, ns *netnstest.NS, stdin string, words ...string) (string, error) {
	var stdout, stderr strings.Builder
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := ns.Do(cmd.Run); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, &stderr)
	}
	return stdout.String(), nil
}
