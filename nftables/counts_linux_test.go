package nftables_test

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/counts"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/nftables"
)

func TestCounts(t *testing.T) {
	ns := nstest.New(t)
	counts.Backend(t, nftables.Name, func(t *testing.T,
		wrap func(rawnl.Socket) rawnl.Socket) backends.Backend {
		return must.OK(nftables.OpenWith(rawnl.Config{NetNS: ns.NetNS(), Wrap: wrap},
			&nftables.Config{NetNS: ns.NetNS()}, false))(t)
	})
}
