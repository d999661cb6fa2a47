// Publish is a CNI plugin that publishes ports of pods on their node, like the plugin portmap. It
// is chained after a plugin that gives the pod its address:
//
//	{"type": "publish", "capabilities": {"portMappings": true}}
//
// Each run is a separate process that keeps no file. The kernel keeps the ports of a pod, as the
// part of the owner "network,container,interface" in one instance.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// request is the input from a runtime, as the CNI specification 1.1 defines it.
type request struct {
	CNIVersion       string          `json:"cniVersion"`
	Name             string          `json:"name"`
	RuntimeConfig    json.RawMessage `json:"runtimeConfig"` // for ADD and CHECK, like PrevResult
	PrevResult       json.RawMessage `json:"prevResult"`
	ValidAttachments []attachment    `json:"cni.dev/valid-attachments"` // of the network, in a GC
}

type mapping struct {
	HostPort      uint16     `json:"hostPort"`
	ContainerPort uint16     `json:"containerPort"`
	Protocol      string     `json:"protocol"` // "tcp" if empty
	HostIP        netip.Addr `json:"hostIP"`   // all addresses of the node if empty
}

type attachment struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// owner names the owner of ports. The network comes first, so that its GC recognises its owners.
func (r *request) owner(a attachment) string {
	return r.Name + "," + a.ContainerID + "," + a.IfName
}

func main() {
	r := request{RuntimeConfig: json.RawMessage("{}")}
	err := json.NewDecoder(os.Stdin).Decode(&r)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err = r.open(ctx, os.Getenv("CNI_COMMAND"), attachment{os.Getenv("CNI_CONTAINERID"),
			os.Getenv("CNI_IFNAME")})
		cancel()
	}
	if err != nil {
		_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"cniVersion": r.CNIVersion,
			"code": code(err), "msg": err.Error()})
		os.Exit(1)
	}
}

// errUnavailable says that the node cannot publish ports now.
var errUnavailable = errors.New("no port can be published")

// code returns CNI's code of an error: 7 is a configuration that can never work, 50 a node that
// cannot publish ports, and the codes from 100 on are the plugin's own.
func code(err error) int {
	if errors.As(err, new(*servicemodel.FieldError)) || errors.Is(err, backends.ErrUnsupported) {
		return 7
	} else if errors.Is(err, errUnavailable) {
		return 50
	}
	return 100
}

// open opens the kernel, and answers a command.
func (r *request) open(ctx context.Context, command string, a attachment) error {
	if command == "VERSION" {
		fmt.Println(`{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}`)
		return nil
	}
	backend, err := nftables.New(&nftables.Config{Table: "published"})
	if errors.Is(err, kernelerr.ErrMissingModule) && (command == "DEL" || command == "GC") {
		return nil // a kernel without nf_tables has no ports to remove
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	defer backend.Close()
	table, err := conntrack.Open(nil)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	defer table.Close()
	keeper, err := flows.New(table, nil)
	if err != nil {
		return err
	}
	parts := dataplane.NewParts(backend, &dataplane.PartsConfig{Flows: keeper})
	return r.run(ctx, parts, command, r.owner(a), os.Stdout, os.Stderr)
}

// run answers a command. Warnings go to stderr.
func (r *request) run(ctx context.Context, parts *dataplane.Parts, command, owner string,
	stdout, stderr io.Writer) error {
	state, err := servicemodel.State{}, error(nil)
	if command == "ADD" || command == "CHECK" {
		if state, err = r.state(owner); err != nil {
			return err
		}
	}
	result := &dataplane.Result{}
	switch command {
	case "ADD":
		if result, err = parts.Apply(ctx, owner, state); err == nil {
			fmt.Fprintln(stdout, string(r.PrevResult)) // the result of the previous plugin
		}
	case "CHECK":
		err = check(parts.Plan(ctx, owner, state))
	case "DEL":
		result, err = parts.Remove(ctx, owner)
	case "GC":
		valid := map[string]bool{}
		for _, a := range r.ValidAttachments {
			valid[r.owner(a)] = true
		}
		result, err = parts.Keep(ctx, func(owner string) bool {
			return valid[owner] || !strings.HasPrefix(owner, r.Name+",")
		})
	case "STATUS":
		if _, err = parts.Owners(ctx); err != nil {
			err = fmt.Errorf("%w: %w", errUnavailable, err)
		}
	}
	if err != nil {
		return err
	}
	for w := range result.Warnings.All() {
		fmt.Fprintln(stderr, "publish: warning:", w)
	}
	if result.Unsettled != nil { // the ports are as requested all the same
		fmt.Fprintln(stderr, "publish: warning: stale flows are left:", result.Unsettled)
	}
	return nil
}

// check returns an error if the kernel does not hold exactly the ports of the pod.
func check(p *dataplane.Preview, err error) error {
	if err == nil && !p.Changes.Empty() {
		err = fmt.Errorf("the ports are not as published; to mend them takes:\n%s", p.Changes)
	}
	if err == nil && len(p.Drift) > 0 {
		err = fmt.Errorf("ports are incomplete: %s", strings.Join(p.Drift, "; "))
	}
	return err
}

// state returns the wanted state: a service for each mapping or range of mappings, with the pod as
// its endpoint. Clients keep their addresses, except clients at loopback and a pod that reaches
// itself.
func (r *request) state(owner string) (servicemodel.State, error) {
	state := servicemodel.State{}.WithNode(servicemodel.Node{LocalhostNodePorts: true})
	var result struct {
		IPs []struct{ Address netip.Prefix } `json:"ips"`
	}
	var conf struct{ PortMappings []mapping }
	if err := errors.Join(json.Unmarshal(r.PrevResult, &result),
		json.Unmarshal(r.RuntimeConfig, &conf)); err != nil {
		return state, fmt.Errorf("prevResult or runtimeConfig: %w", err)
	}
	if len(result.IPs) == 0 && len(conf.PortMappings) > 0 {
		return state, errors.New("prevResult.ips: the pod has no address")
	}
	protocols := map[string]servicemodel.Protocol{"": servicemodel.TCP, "tcp": servicemodel.TCP,
		"udp": servicemodel.UDP, "sctp": servicemodel.SCTP} // other values are refused as invalid
	place := func(i int) (at servicemodel.FrontendKey, port, target uint16, joins bool) {
		m := conf.PortMappings[i]
		at.Protocol = protocols[strings.ToLower(m.Protocol)]
		if m.HostIP.IsValid() && !m.HostIP.IsUnspecified() {
			at.Addr = m.HostIP // which goes before all addresses
		}
		return at, m.HostPort, m.ContainerPort, !at.Addr.IsValid()
	}
	for i, end := range servicemodel.JoinPorts(len(conf.PortMappings), place) {
		m := conf.PortMappings[i]
		at, _, _, _ := place(i)
		if m.ContainerPort == 0 {
			return state, fmt.Errorf("portMappings[%d].containerPort: is missing", i)
		}
		port := servicemodel.ServicePort{Protocol: at.Protocol, Port: m.HostPort, EndPort: end}
		if end != 0 { // packets keep their ports, or go to a range of the pod
			if m.ContainerPort != m.HostPort {
				port.TargetPort = m.ContainerPort
			}
			m.ContainerPort = 0
		}
		svc := &servicemodel.Service{
			Name:       servicemodel.Name{Namespace: owner, Name: fmt.Sprint("port-", i)},
			Ports:      []servicemodel.ServicePort{port},
			Masquerade: servicemodel.MasqueradeAt(servicemodel.MasqueradeNever)}
		if at.Addr.IsValid() {
			svc.HostIPs = []netip.Addr{at.Addr}
		} else {
			svc.Ports[0].NodePort = m.HostPort
		}
		var pod []servicemodel.Endpoint
		for _, ip := range result.IPs {
			pod = append(pod, servicemodel.Endpoint{Addr: ip.Address.Addr(),
				Ports: []servicemodel.EndpointPort{{Protocol: at.Protocol, Port: m.ContainerPort}}})
		}
		state = state.WithService(svc).WithEndpoints(svc.Name, pod)
	}
	return state, nil
}
