package vmtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// debianPackages says which package brings a program that this package runs, or
// that callers commonly ask for in the guest.
var debianPackages = map[string]string{
	"apt-cache":          "apt",
	"apt-config":         "apt",
	"apt-get":            "apt",
	"conntrack":          "conntrack",
	"depmod":             "kmod",
	"dpkg-deb":           "dpkg",
	"go":                 "golang-go",
	"gzip":               "gzip",
	"ip":                 "iproute2",
	"ipset":              "ipset",
	"ipvsadm":            "ipvsadm",
	"ldd":                "libc-bin",
	"nft":                "nftables",
	"qemu-system-x86_64": "qemu-system-x86",
	"ss":                 "iproute2",
	"tc":                 "iproute2",
	"tcpdump":            "tcpdump",
	"xz":                 "xz-utils",
	"zstd":               "zstd",
}

// systemDirs are searched after PATH: Debian keeps them out of the PATH of users
// who are not root.
var systemDirs = []string{"/usr/local/sbin", "/usr/sbin", "/sbin"}

// findProgram returns the path of a program, or a [*MissingError].
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return filepath.Abs(path)
	}
	for _, dir := range systemDirs {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p, nil
		}
	}
	pkg := debianPackages[name]
	if pkg == "" && (strings.HasPrefix(name, "iptables") || strings.HasPrefix(name, "ip6tables")) {
		pkg = "iptables"
	}
	return "", &MissingError{What: "the program " + name, Package: pkg}
}

// command is one program to run to its end. The C locale keeps what it says
// readable for this package.
type command struct {
	Name string
	Args []string
	Dir  string
	Env  []string
}

// output runs the command and returns its standard output. The error holds the
// command's name and what it said on standard error.
func (c command) output(ctx context.Context) (string, error) {
	path, err := findProgram(c.Name)
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, c.Args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.Dir, &stdout, &stderr
	cmd.Env = append(append(os.Environ(), "LC_ALL=C"), c.Env...)
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = errors.Join(err, context.Cause(ctx))
		}
		return stdout.String(), fmt.Errorf("%s %s: %w%s", c.Name, firstArg(c.Args), err,
			indent(stderr.String()))
	}
	return stdout.String(), nil
}

func firstArg(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// indent puts a program's message on lines of its own below the error.
func indent(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return ""
	}
	return "\n\t" + strings.ReplaceAll(text, "\n", "\n\t")
}
