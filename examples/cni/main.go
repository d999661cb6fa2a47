// Cni is a chained CNI plugin that publishes ports of containers on their host, in the place of
// portmap: it reads the same configuration, and answers ADD, DEL, CHECK, GC and STATUS of the
// specification 0.3.0 to 1.1.0.
//
//	{"type": "kernlb-portmap", "capabilities": {"portMappings": true}}
//
// Each run is a process of its own that keeps no file: what a container has is in the kernel, as
// the part of one instance on nftables that belongs to the owner "network,container,interface".
// README.md says how to install it, and what becomes of each field. Where things are:
//
//	main.go        the commands of CNI, each a call of dataplane.Parts
//	config.go      what a runtime writes to the plugin; what is refused, by field
//	conditions.go  conditionsV4 and conditionsV6
//	state.go       what is wanted: a service for each mapping and family
//
// What the package is about is in docs/cni.md; examples/publish is the same in 150 lines.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/flows"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/nftables"
)

// instance names the tables of nf_tables. All networks of a host share it.
const instance = "kernlb-cni"

// The codes of STATUS, and of what is held by another container: the specification leaves those
// from 100 on to plugins.
const (
	codeUnavailable uint = 50
	codeTaken       uint = 100
)

func main() {
	log.SetFlags(0)
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Check: check, Del: del, GC: gc, Status: status},
		version.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"),
		"CNI plugin kernlb-portmap: publishes ports of containers by nf_tables")
}

// owner names who owns ports. The network comes first, so that its GC can tell whose they are; the
// name of a network has no comma.
func owner(network, container, iface string) string {
	return network + "," + container + "," + iface
}

// add publishes the ports of a container, and hands on what the plugin before has done.
func add(args *skel.CmdArgs) error {
	conf, err := parse(args.StdinData, args.IfName)
	if err != nil {
		return err
	}
	if len(conf.mappings) > 0 {
		id := owner(conf.Name, args.ContainerID, args.IfName)
		err = withParts(func(ctx context.Context, parts *dataplane.Parts) error {
			_, err := parts.Apply(ctx, id, conf.state(id))
			return conf.named(settled(err))
		})
	}
	if err == nil {
		_, err = fmt.Fprintln(os.Stdout, string(conf.PrevResult))
	}
	return err
}

// check fails if the kernel does not hold what add has put there.
func check(args *skel.CmdArgs) error {
	conf, err := parse(args.StdinData, args.IfName)
	if err != nil || len(conf.mappings) == 0 {
		return err
	}
	id := owner(conf.Name, args.ContainerID, args.IfName)
	return withParts(func(ctx context.Context, parts *dataplane.Parts) error {
		p, err := parts.Plan(ctx, id, conf.state(id))
		if err != nil {
			return conf.named(err)
		}
		if len(p.Drift) > 0 {
			return fmt.Errorf("the kernel holds what does not belong there: %s",
				strings.Join(p.Drift, "; "))
		}
		if !p.Changes.Empty() {
			return fmt.Errorf("the kernel does not hold what is published; to mend it takes:\n%s",
				p.Changes)
		}
		return nil
	})
}

// del removes what a container has published. The configuration may be one that add would refuse.
func del(args *skel.CmdArgs) error {
	var conf types.PluginConf
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	return withParts(func(ctx context.Context, parts *dataplane.Parts) error {
		_, err := parts.Remove(ctx, owner(conf.Name, args.ContainerID, args.IfName))
		return settled(err)
	})
}

// gc removes what others than the network's valid attachments have published in this network.
func gc(args *skel.CmdArgs) error {
	var conf types.PluginConf
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	valid := map[string]bool{}
	for _, a := range conf.ValidAttachments {
		valid[owner(conf.Name, a.ContainerID, a.IfName)] = true
	}
	return withParts(func(ctx context.Context, parts *dataplane.Parts) error {
		_, err := parts.Keep(ctx, func(owner string) bool {
			return valid[owner] || !strings.HasPrefix(owner, conf.Name+",")
		})
		return settled(err)
	})
}

// status says whether ADD can work.
func status(*skel.CmdArgs) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := nftables.Candidate(&nftables.Config{Table: instance}).Probe(ctx); err != nil {
		return types.NewError(codeUnavailable, "nf_tables cannot be used", err.Error())
	}
	return nil
}

// withParts does something with the parts of the instance.
func withParts(do func(context.Context, *dataplane.Parts) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	backend, err := nftables.New(&nftables.Config{Table: instance})
	if err != nil {
		return err
	}
	defer backend.Close()
	table, err := conntrack.Open(nil)
	if err != nil {
		return err
	}
	defer table.Close()
	keeper, err := flows.New(table, nil)
	if err != nil {
		return err
	}
	return do(ctx, dataplane.NewParts(backend, &dataplane.PartsConfig{Flows: keeper}))
}

// settled only reports that stale flows could not be deleted: what was asked for is done.
func settled(err error) error {
	if errors.Is(err, dataplane.ErrUnsettled) {
		log.Print(err)
		return nil
	}
	return err
}
