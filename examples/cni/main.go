// Cni is a chained CNI plugin that publishes ports of containers on their host, in place of
// portmap. It reads the same configuration, and answers ADD, DEL, CHECK, GC and STATUS of the
// specifications 0.3.0 to 1.1.0.
//
//	{"type": "kernlb-portmap", "capabilities": {"portMappings": true}}
//
// Each run is a separate process that keeps no file. The kernel keeps the ports of a container, as
// the part of the owner "network,container,interface" in one nftables instance. README.md says how
// to install the plugin, and how it treats each field. The files:
//
//	main.go        the commands of CNI, each a call of dataplane.Parts
//	config.go      the input from a runtime, and what is refused, by field
//	state.go       the wanted state: a service for each mapping and family
//
// docs/programs.md explains the subject. examples/publish does the same in 200 lines.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// instance names the tables of nf_tables. All networks of a host share it.
const instance = "kernlb-cni"

// Error codes: one for STATUS, and one for ports that another container holds. The specification
// leaves codes from 100 on to plugins.
const (
	codeUnavailable uint = 50
	codeTaken       uint = 100
)

// usage is printed when a person, and not a runtime, starts the plugin.
const usage = `kernlb-portmap is a chained CNI plugin: it publishes ports of containers on their
host, in the place of portmap. A container runtime starts it, with CNI_COMMAND in the environment
and the configuration of a network on standard input. Example of such a configuration:

  {"cniVersion": "1.1.0", "name": "web", "plugins": [
    {"type": "bridge", "bridge": "cni0", "isGateway": true,
     "ipam": {"type": "host-local", "subnet": "10.22.0.0/16"}},
    {"type": "kernlb-portmap", "capabilities": {"portMappings": true}}]}

The instance in the kernel is kernlb-cni: "kernlb show -instance kernlb-cni" prints it.
"kernlb-portmap version" prints the version.
`

func main() {
	switch args := os.Args[1:]; {
	case os.Getenv("CNI_COMMAND") != "" || len(args) == 0:
	case strings.TrimLeft(args[0], "-") == "version":
		if info, ok := debug.ReadBuildInfo(); ok {
			fmt.Println("kernlb-portmap", info.Main.Version+",", info.GoVersion)
		}
		return
	default:
		fmt.Print(usage)
		return
	}

	log.SetFlags(0)
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Check: check, Del: del, GC: gc, Status: status},
		cniversion.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"),
		"CNI plugin kernlb-portmap: publishes ports of containers by nf_tables")
}

// owner returns the name of the owner of ports. The network comes first, so that its GC recognises
// its owners. Names of networks have no comma.
func owner(network, container, iface string) string {
	return network + "," + container + "," + iface
}

// add publishes the ports of a container, and passes on the result of the previous plugin.
func add(args *skel.CmdArgs) error {
	conf, err := parse(args.StdinData, args.IfName)
	if err != nil {
		return err
	}
	if len(conf.mappings) > 0 {
		id := owner(conf.Name, args.ContainerID, args.IfName)
		err = withParts(func(ctx context.Context, parts *dataplane.Parts) error {
			return conf.named(report(parts.Apply(ctx, id, conf.state(id))))
		})
	}

	if err == nil {
		_, err = fmt.Fprintln(os.Stdout, string(conf.PrevResult))
	}
	return err
}

// check fails if the kernel does not hold everything that add wrote.
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
		var errs []error
		if !p.Changes.Empty() {
			errs = append(errs, fmt.Errorf("the kernel does not hold what is published; to mend "+
				"it takes:\n%s", p.Changes))
		}

		if len(p.Drift) > 0 {
			errs = append(errs, fmt.Errorf("the kernel holds objects that are incomplete, or do "+
				"not belong there: %s", strings.Join(p.Drift, "; ")))
		}

		return errors.Join(errs...)
	})
}

// attachments are the only fields of a configuration that del and gc read.
type attachments struct {
	Name  string               `json:"name"` // of the network
	Valid []types.GCAttachment `json:"cni.dev/valid-attachments"`
}

// del removes the ports of a container. It also accepts configurations that add would refuse.
func del(args *skel.CmdArgs) error {
	var conf attachments
	if err := decode(args.StdinData, &conf); err != nil {
		return err
	}
	return ifAny(func(ctx context.Context, parts *dataplane.Parts) error {
		return report(parts.Remove(ctx, owner(conf.Name, args.ContainerID, args.IfName)))
	})
}

// gc removes the ports in this network that belong to none of its valid attachments.
func gc(args *skel.CmdArgs) error {
	var conf attachments
	if err := decode(args.StdinData, &conf); err != nil {
		return err
	}
	valid := map[string]bool{}
	for _, a := range conf.Valid {
		valid[owner(conf.Name, a.ContainerID, a.IfName)] = true
	}
	return ifAny(func(ctx context.Context, parts *dataplane.Parts) error {
		return report(parts.Keep(ctx, func(owner string) bool {
			return valid[owner] || !strings.HasPrefix(owner, conf.Name+",")
		}))
	})
}

// status says whether ADD can work: whether the kernel has the necessary modules, and whether a new
// container could publish ports. It could not while a version with another layout publishes other
// containers.
func status(*skel.CmdArgs) error {
	err := withParts(func(ctx context.Context, parts *dataplane.Parts) error {
		err := nftables.Candidate(&nftables.Config{Table: instance}).Probe(ctx)
		if err == nil {
			_, err = parts.Plan(ctx, owner("status", "status", "status"), servicemodel.State{})
		}
		return err
	})
	if err != nil {
		return types.NewError(codeUnavailable, "no port can be published", err.Error())
	}
	return nil
}

// withParts calls do with the parts of the instance.
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

// ifAny calls do like withParts, except on a kernel without nf_tables. There no port is published,
// so there is none to remove.
func ifAny(do func(context.Context, *dataplane.Parts) error) error {
	err := withParts(do)
	if errors.Is(err, kernelerr.ErrMissingModule) || errors.Is(err, kernelerr.ErrKernelTooOld) {
		log.Print("no port is published here: ", err)
		return nil
	}

	return err
}

// report logs what has no effect, and stale flows that could not be deleted. The ports are as
// requested all the same.
func report(r *dataplane.Result, err error) error {
	if err != nil {
		return err
	}
	for w := range r.Warnings.All() {
		log.Print("warning: ", w)
	}
	if r.Unsettled != nil {
		log.Print("warning: stale flows are left: ", r.Unsettled)
	}
	return nil
}
