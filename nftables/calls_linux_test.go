package nftables

import (
	"errors"
	"testing"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
)

// OpenWith opens a backend with other connections to the kernel. With full, a set is full as soon
// as it has one more element than at first.
func OpenWith(c rawnl.Config, cfg *Config, full bool) (backends.Backend, error) {
	b, err := openBackend(cfg)
	if err != nil {
		return nil, err
	}
	if full {
		b.pl.Capacity = func(n int) uint32 { return uint32(n) + 1 }
	}
	return b.with(c)
}

// openWith opens a backend with other connections to the kernel.
func openWith(c rawnl.Config) (*backend, error) {
	b, err := openBackend(&Config{NetNS: c.NetNS, Logger: c.Logger})
	if err != nil {
		return nil, err
	}
	return b.with(c)
}

// with replaces the connections to the kernel.
func (b *backend) with(c rawnl.Config) (*backend, error) {
	k := &b.kernel
	for i := range k.reader.Queriers {
		conn, err := rawnl.Dial(&c)
		if err != nil {
			return nil, errors.Join(err, b.Close())
		}
		k.reader.Queriers[i].Conn.Close()
		k.reader.Queriers[i].Conn = conn
	}

	k.reader.Conn, k.room = k.reader.Queriers[0].Conn, k.reader.Queriers[0].Conn.MaxBatch()/2
	return b, nil
}

// machine is the backend, with access to its connections.
func machine() dataplanetest.FaultyBackend {
	return dataplanetest.FaultyBackend{
		Backend: dataplanetest.Backend{Loopback: true,
			Open: func(ns netns.Namespace) (backends.Backend, error) {
				return openBackend(&Config{NetNS: ns})
			}},
		OpenWith: func(c rawnl.Config) (backends.Backend, error) { return openWith(c) }}
}

func TestEachCallGoesWrong(t *testing.T) {
	t.Parallel()
	dataplanetest.Faulted(t, machine)
}

func TestKernelClockJumps(t *testing.T) { dataplanetest.ClockJumps(t, machine().Backend) }

// The rulesets of older programs were recorded with nft list ruleset. The name of a file is the
// program's commit.
func TestObstacles(t *testing.T) {
	t.Parallel()
	o := dataplanetest.Obstacles{Machine: machine, Instance: defaultTable,
		Needs: "reject", Crowded: []string{"ip foreign"},
		Default: func() (backends.Backend, error) { return openBackend(nil) },
		Culprits: []string{"nft flush ruleset", "nft delete table ip kernlb",
			"nft add chain ip kernlb by-hand"},
		Layouts: []dataplanetest.Layout{
			{Name: "older", Recorded: "nft -f testdata/layouts/752c62b.nft"},
			{Name: "with a set for each number of slots",
				Recorded: "nft -f testdata/layouts/c6e37d1.nft"},
			{Name: "with a binary search", Recorded: "nft -f testdata/layouts/6878ce2.nft"},
			{Name: "newer by its number", Edit: newerNumber},
			{Name: "newer by its objects", Edit: newerNumber + newerObjects}}}
	o.Run(t)
}

const newerNumber = `nft -f - << END
delete element ip kernlb settings { 0x00000001 }
add element ip kernlb settings { 0x00000001 comment "layout 1000" }
delete element ip6 kernlb settings { 0x00000001 }
add element ip6 kernlb settings { 0x00000001 comment "layout 1000" }
END
`

const newerObjects = `nft -f - << END
add element ip kernlb settings { 0x00000063 comment "something new" }
add set ip kernlb new { type ipv4_addr; elements = { 10.96.0.10 }; }
add chain ip kernlb new
add rule ip kernlb new ip daddr @new counter
insert rule ip kernlb services jump new
END
`
