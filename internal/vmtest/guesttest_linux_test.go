package vmtest

// The guest suite under testdata is built as a package of this module, but the go command does not
// look there for what it imports.
import (
	_ "github.com/google/nftables"
	_ "github.com/mdlayher/genetlink"
)
