package vmtest

// What the tests below testdata import: go mod tidy does not look there.
import (
	_ "github.com/google/nftables"
	_ "github.com/mdlayher/genetlink"
	_ "github.com/vishvananda/netlink"
)
