// Package serve is the process of one peer. It syncs the changes that it reads from standard input.
// Each version of kube-proxy needs a separate program, because a program has only one version of a
// module.
package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Change is a change of the objects that a peer knows.
type Change struct {
	Services     []*corev1.Service            `json:"services,omitempty"`
	Slices       []*discoveryv1.EndpointSlice `json:"slices,omitempty"`
	GoneServices []types.NamespacedName       `json:"goneServices,omitempty"`
	GoneSlices   []types.NamespacedName       `json:"goneSlices,omitempty"`
}

// Settings is the configuration of a peer. All peers have the same configuration.
type Settings struct {
	// NodeAddrs are the node's addresses, the primary ones first.
	NodeAddrs []netip.Addr
	// ClusterCIDRs are the ranges of pods. Without any, the peer cannot recognize pods.
	ClusterCIDRs []netip.Prefix
	ServiceCIDRs []netip.Prefix
	// IPv4Only leaves out kube-proxy's IPv6 half.
	IPv4Only bool
}

// NodeName is the name of the node under test.
const NodeName = "this"

// Syncer is a peer inside its process.
type Syncer interface {
	// Sync delivers a change and returns when the kernel has it.
	Sync(ctx context.Context, c *Change) error
}

// Maker makes a syncer.
type Maker struct {
	Name string
	Make func(ctx context.Context, s *Settings) (Syncer, error)
}

// Answer is the answer of a peer's process to a change.
type Answer struct {
	// Took is the duration of the sync, and CPU the processor time that the peer and the programs
	// that it ran spent on it.
	Took  time.Duration `json:"took"`
	CPU   time.Duration `json:"cpu"`
	Error string        `json:"error,omitempty"`
}

// Command is a peer's process: it answers changes from standard input until standard input ends.
// Its arguments are the name of one of the makers and the settings as JSON. It writes answers to
// file descriptor 3.
func Command(ctx context.Context, args []string, makers []Maker) error {
	if len(args) != 2 {
		return errors.New("serve is for the processes that peers starts itself")
	}
	var s Settings
	if err := json.Unmarshal([]byte(args[1]), &s); err != nil {
		return err
	}
	answers := json.NewEncoder(os.NewFile(3, "answers"))
	i := slices.IndexFunc(makers, func(m Maker) bool { return m.Name == args[0] })
	if i < 0 {
		return fmt.Errorf("no peer %q", args[0])
	}
	p, err := makers[i].Make(ctx, &s)
	if err != nil {
		return errors.Join(err, answers.Encode(Answer{Error: err.Error()}))
	}
	if err := answers.Encode(Answer{}); err != nil {
		return err
	}
	for in := json.NewDecoder(os.Stdin); ; {
		c := &Change{}
		if err := in.Decode(c); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}

		start, spent := time.Now(), cpuTime()
		a := Answer{}
		if err := p.Sync(ctx, c); err != nil {
			a.Error = err.Error()
		}
		a.Took, a.CPU = time.Since(start), cpuTime()-spent
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

// cpuTime is the processor time of this process and of the programs that it ran.
func cpuTime() (sum time.Duration) {
	for _, of := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if syscall.Getrusage(of, &u) == nil {
			sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}

	return sum
}
