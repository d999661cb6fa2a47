package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// story is the demonstration, step by step. After the first error it skips all further steps.
type story struct {
	ctx     context.Context
	out     io.Writer
	network *netnstest.Cluster
	engine  *dataplane.Engine
	state   servicemodel.State
	err     error
}

func (s *story) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

func (s *story) title(text string) { s.say("\n\x1b[1m%s\x1b[0m", text) }

// apply applies the state, and prints the changes in the model and in the kernel.
func (s *story) apply(state servicemodel.State) {
	if s.err != nil {
		return
	}
	r, err := s.engine.Apply(s.ctx, state)
	if err != nil {
		s.err = err
		return
	}
	s.state = state
	if r.Changes.Empty() {
		s.say("    nothing changes")
	} else {
		s.say("%s", indent(r.Changes.String()))
	}
	s.say("    in the kernel: %d set elements and rules, %d messages, %d bytes, in %v",
		r.Stats.Elements, r.Stats.Messages, r.Stats.Bytes, r.Duration.Round(time.Microsecond))
}

func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ")
}

func (s *story) first() {
	s.title(
		"A node, its pods and a client outside, in namespaces of their own. The node is told of " +
			"two services:")
	s.apply(s.state)
}

// traffic sends connections to the services from a pod and from outside.
func (s *story) traffic() {
	pod, outside := s.network.Pods[0], s.network.Outside[0]
	web, dns := netip.MustParseAddrPort("10.96.0.10:80"), netip.MustParseAddrPort("10.96.0.2:53")
	nodePort := netip.AddrPortFrom(s.network.Node.IPv4, 30080)
	s.title("Connections, and who answered them:")
	s.send("web from a pod, by its cluster IP", pod, servicemodel.TCP, web, 150)
	s.send("web from outside, by a node port", outside, servicemodel.TCP, nodePort, 150)
	s.send("dns from a pod, over UDP", pod, servicemodel.UDP, dns, 100)
	s.send("dns from a pod, over TCP", pod, servicemodel.TCP, dns, 100)
}

// send sends connections and draws the answers by server.
func (s *story) send(what string, from *netnstest.Host, proto servicemodel.Protocol,
	to netip.AddrPort,
	n int) {
	if s.err != nil {
		return
	}
	count := map[string]int{}
	sources := map[string]bool{}
	for i, got := range netnstest.SendAll(s.ctx,
		slices.Repeat([]netnstest.Probe{{From: from, Proto: proto, To: to}}, n)) {
		if got.Kind != netnstest.Answered {
			s.err = fmt.Errorf("connection %d of %d, %s to %s from %s: %s", i+1, n, proto, to,
				from.Name, got)
			return
		}
		count[got.Server]++
		sources[got.Source.Addr().String()] = true
	}
	s.say("  %d × %s  %s/%s  (the servers saw %s)", n, what, to, proto,
		strings.Join(slices.Sorted(maps.Keys(sources)), ", "))
	for _, name := range slices.Sorted(maps.Keys(count)) {
		s.say("    %-8s %4d  %s", name, count[name], strings.Repeat("█", count[name]*60/n))
	}
}

// scale adds an endpoint to the web service, and then removes another endpoint.
func (s *story) scale() {
	name := servicemodel.Name{Namespace: "default", Name: "web"}
	eps := s.state.Endpoints(name)
	if len(eps) == 0 {
		return
	}
	more := eps[0]
	more.Addr = s.network.Pods[2].IPv4
	s.title("One endpoint more:")
	s.apply(s.state.WithEndpoints(name, append(eps, more)))
	s.title("The first endpoint is gone:")
	s.apply(s.state.WithEndpoints(name, append(eps[1:], more)))
	s.send("web from a pod, by its cluster IP", s.network.Pods[0], servicemodel.TCP,
		netip.MustParseAddrPort("10.96.0.10:80"), 150)
	s.title("The same once more:")
	s.apply(s.state)
}

// cleanup removes everything, and checks that nothing is left.
func (s *story) cleanup() {
	s.title("Cleaning up:")
	stats, err := s.engine.Cleanup(s.ctx)
	if err == nil {
		var o *backends.Observation
		if o, err = s.engine.Observe(s.ctx); err == nil && (o.Table.Len() > 0 || len(o.Drift) > 0) {
			err = fmt.Errorf("cleaning up left %d frontends and %d other objects", o.Table.Len(),
				len(o.Drift))
		}
	}
	if err != nil && s.err == nil {
		s.err = err
	}
	if s.err == nil {
		s.say("    %d messages in %v; the kernel holds nothing of ours any more", stats.Messages,
			stats.Duration.Round(time.Microsecond))
	}
}
