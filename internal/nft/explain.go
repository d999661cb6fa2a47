package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// Release is a kernel's major and minor version. The zero Release means that the version is
// unknown.
type Release struct{ Major, Minor int }

// oldest is the oldest kernel that the backends are tested on.
var oldest = Release{5, 10}

// Running returns the release of the running kernel.
func Running() Release {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return Release{}
	}
	return parseRelease(strings.TrimSpace(string(text)))
}

// parseRelease reads the output of uname -r, such as "6.1.0-56-cloud-amd64". It returns the zero
// Release for any other text.
func parseRelease(s string) Release {
	var r Release
	if n, _ := fmt.Sscanf(s, "%d.%d", &r.Major, &r.Minor); n < 2 || r.Major < 0 {
		return Release{}
	}
	return r
}

func (r Release) compare(o Release) int {
	return slices.Compare([]int{r.Major, r.Minor}, []int{o.Major, o.Minor})
}

// String returns "5.10".
func (r Release) String() string { return fmt.Sprintf("%d.%d", r.Major, r.Minor) }

// Explain turns a kernel's refusal of the changes in b into an error that names the missing
// feature, with a sentinel of package kernelerr if possible. b is nil if the kernel refused to open
// the backend. running is the kernel's release. Explain ignores the refusal of an object that
// exists already, because such a refusal says nothing about the kernel's features.
func Explain(err error, b *rawnl.Batch, running Release) error {
	err = rawnl.Except(err, syscall.EEXIST)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kernelerr.ErrMissingModule):
		return err
	case errors.Is(err, fs.ErrPermission):
		return kernelerr.NoPermission(
			"CAP_NET_ADMIN in the user namespace that owns the network namespace", err)
	case !lacking(err):
		return err
	case running != Release{} && running.compare(oldest) < 0:
		return fmt.Errorf("%w: it is Linux %s, and %s is the oldest that kernlb is tested on: %w",
			kernelerr.ErrKernelTooOld, running, oldest, err)
	}

	if named := Missing(err, b); named != nil {
		return named
	}
	return fmt.Errorf("%w, or an option that the kernel was built without: %w",
		kernelerr.ErrMissingModule, err)
}

// Missing names the modules that the kernel lacked when it refused the batch b. It returns nil if
// err names no module.
func Missing(err error, b *rawnl.Batch) error {
	if l := modules(err, b); len(l) > 0 {
		return fmt.Errorf("%w %s: %w", kernelerr.ErrMissingModule, strings.Join(l, ", "), err)
	}
	return nil
}

// lacking reports whether the kernel did not know a protocol or the object of a message. An error
// from entering a network namespace may have the same number, but says nothing about the kernel's
// features.
func lacking(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.EPROTONOSUPPORT, syscall.EAFNOSUPPORT, syscall.ENOPROTOOPT,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}

	return slices.ContainsFunc(rawnl.Refusals(err), func(e *rawnl.OpError) bool {
		return e.Errno == syscall.ENOENT || e.Errno == syscall.EOPNOTSUPP ||
			e.Errno == syscall.EINVAL
	})
}

// modules names the modules that the kernel did not find, sorted.
func modules(err error, b *rawnl.Batch) []string {
	if errors.Is(err, syscall.EPROTONOSUPPORT) {
		return []string{"nfnetlink"}
	}
	var l []string
	for _, e := range rawnl.Refusals(err) {
		switch {
		case e.Index < 0 && e.Errno == syscall.EOPNOTSUPP:
			l = append(l, "nf_tables")
		case e.Index >= 0 && e.Errno == syscall.ENOENT && b != nil && e.Index < b.Len():
			if m := module(b.At(e.Index), e.Offset); m != "" {
				l = append(l, m)
			}
		}
	}

	slices.Sort(l)
	return slices.Compact(l)
}

// module names the module that the kernel did not find when it refused a message with ENOENT at
// offset. It returns "" if the kernel looked for something else, such as a chain that it had
// refused before. The kernel requests modules by aliases such as "nft-chain-2-nat",
// "nft-expr-2-fib" or "ipt_DNAT". The returned names are file names of modules.
func module(msg []byte, offset int) string {
	const typeAt, familyAt, header = 4, 16, 20
	if len(msg) < header {
		return ""
	}
	ip := "ipv4"
	if msg[familyAt] == IPv6.NFProto {
		ip = "ipv6"
	}
	path := rawnl.AttrPath(msg, offset)
	switch uint8(binary.NativeEndian.Uint16(msg[typeAt:])) {
	case MsgNewChain:
		if len(path) > 0 && path[0].Type == AttrChainTable {
			return "" // another program has deleted the table
		}
		if t := fieldsOf(msg[header:]).text(attrChainType); t != "" {
			return "nft_chain_" + t
		}
	case MsgNewRule:
		if len(path) == 0 || path[0].Type != attrRuleExpressions {
			return ""
		}
		expr := fieldsOf(path[min(1, len(path)-1)].Data)
		return expression(expr.text(exprName), fieldsOf(expr[exprData]).text(AttrExtensionName), ip)
	}

	return ""
}

// expression names the module of an expression. ext is the name of the expression's match or target
// of x_tables, or empty.
func expression(name, ext, ip string) string {
	switch name {
	// These are part of nf_tables. They fail if the set, chain or object that they refer to is
	// missing.
	case "", "immediate", "lookup", "dynset", "objref":
		return ""
	case "match", "target":
		if ext == "" {
			return "nft_compat"
		}
		return "xt_" + ext
	case "fib", "reject":
		return "nft_" + name + "_" + ip
	}

	return "nft_" + name
}
