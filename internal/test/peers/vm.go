package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/kernlb/kernlb/internal/test/vm"
)

// guestTools are the programs that kube-proxy runs.
var guestTools = []string{
	"ipset", "conntrack", "nft", "ipvsadm", "ip",
	"iptables-nft", "iptables-nft-save", "iptables-nft-restore", "ip6tables-nft",
	"ip6tables-nft-save", "ip6tables-nft-restore",
	"iptables-legacy", "iptables-legacy-save", "iptables-legacy-restore", "ip6tables-legacy",
	"ip6tables-legacy-save", "ip6tables-legacy-restore",
}

// vmCommand runs this program in a virtual machine.
func vmCommand(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("vm", flag.ContinueOnError)
	kernel := fs.String("kernel", "6.1", "the kernel's `SERIES`, see internal/test/vm")
	memory := fs.Int("memory", 3072, "memory in `MiB`")
	timeout := fs.Duration("timeout", time.Hour, "limit")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return errors.New("want measure, compare or handover, with its flags")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	_, err = vmtest.Run(ctx, vmtest.Options{
		Kernel: *kernel, Memory: *memory, Timeout: *timeout, Tools: guestTools, Output: out,
		Log:      slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Programs: []vmtest.Program{{Name: "peers", Path: self, Args: fs.Args()}},
	})
	if errors.Is(err, vmtest.ErrTestsFailed) {
		return fmt.Errorf("%v did not succeed in the virtual machine", fs.Args())
	}
	return err
}
