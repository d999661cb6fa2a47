package nftables

import "errors"

// errNotObserved says that a caller broke the contract of dataplane.Backend.
var errNotObserved = errors.New(
	"nftables: the kernel was not observed since the backend was opened or the last error")
