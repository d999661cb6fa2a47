package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strings"

	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

func (k *kernel) openTunables(c *Config) {
	k.values = values{Files: sysctls.Files{In: k.ns.Do}, k: k}
	k.others.k = k
	k.tunables = sysctls.Owner{Values: &k.values, Others: &k.others, Ours: c.tunables(),
		Logger: c.Logger.With(logkey.Backend, Name, logkey.Instance, c.Table)}
	maps.Copy(k.tunables.Ours, sysctlValues(true))
}

// values implements [sysctls.Values].
type values struct {
	sysctls.Files
	k *kernel
}

// Read reads a tunable.
func (v *values) Read(ctx context.Context, name string) (string, error) {
	if !isTimeout(name) {
		return v.Files.Read(ctx, name)
	}
	t, err := v.k.vs.Timeouts(ctx)
	if err != nil {
		return "", fmt.Errorf("read timeouts: %w", err)
	}
	return timeoutValues(t)[name], nil
}

// Write sets a tunable. A sysctl that does not exist has no effect, so it need not be set.
func (v *values) Write(ctx context.Context, name, value string) error {
	if !isTimeout(name) {
		err := v.Files.Write(ctx, name, value)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}

	err := v.k.vs.SetTimeouts(ctx, timeoutsOf(map[string]string{name: value}))
	if err != nil {
		return fmt.Errorf("set timeouts: %w", err)
	}
	return nil
}

// others reports other programs' use of tunables. It implements [sysctls.Others].
type others struct {
	k        *kernel
	foreign  bool // other programs have virtual servers
	forwards bool // other programs have rules about forwarded packets, except in x_tables
}

// Relied returns the tunables on which another program may rely. A firewall or container runtime
// may have found ip_forward at 1, and may rely on that value.
func (o *others) Relied(ctx context.Context, names []string) (map[string]string, error) {
	recorded, err := o.Earlier(ctx)
	if err != nil {
		return nil, err
	}
	relied := map[string]string{}
	for _, name := range names {
		_, needed := recorded[name]
		switch {
		case needed:
			relied[name] = "another instance needs it"
		case o.foreign && (isTimeout(name) || strings.HasPrefix(name, sysctlIPVS)):
			relied[name] = "there are virtual servers of others"
		case name == sysctlForward && (o.forwards || o.usesIptables()):
			relied[name] = "others have rules about forwarded packets"
		}
	}

	return relied, nil
}

// Earlier returns the earlier values that other instances have recorded.
func (o *others) Earlier(ctx context.Context) (map[string]string, error) {
	all := map[string]string{}
	tables, err := o.read(ctx)
	for t := range tables {
		var lines []string
		if err == nil {
			q := nft.Query{Conn: o.k.nf, Family: nft.IPv4, Table: t}
			lines, err = q.Comments(ctx, setSettings)
		}

		maps.Copy(all, sysctls.ParseRecords(lines))
	}

	return all, err
}

// Families of base chains that see forwarded packets of IP.
const (
	protoInet = 1  // NFPROTO_INET
	protoIPv4 = 2  // NFPROTO_IPV4
	protoIPv6 = 10 // NFPROTO_IPV6
)

// read lists other programs' tables with chains, and records whether they have rules about
// forwarded packets.
func (o *others) read(ctx context.Context) (tables map[string]bool, err error) {
	var req rawnl.Batch
	req.Message(rawnl.SubsysNFTables, nft.MsgGetChain, 0, 0, 0,
		rawnl.Object{Verb: "look for others'", Kind: "chains"})
	tables, o.forwards = map[string]bool{}, false
	err = o.k.nf.DumpOwn(ctx, &req, func(m rawnl.Message) error {
		c, err := nft.DecodeChain(m.Attrs)
		ip := m.Family == protoInet || m.Family == protoIPv4 || m.Family == protoIPv6
		if err == nil && ip && c.Table != o.k.table {
			tables[c.Table] = true
			o.forwards = o.forwards || c.Type != "" && c.Hook == nft.HookForward
		}

		return err
	})
	return tables, err
}

// usesIptables reports whether x_tables has any tables.
func (o *others) usesIptables() (uses bool) {
	err := o.k.ns.Do(func() error {
		for _, file := range []string{"ip_tables_names", "ip6_tables_names"} {
			names, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			uses = uses || len(names) > 0
		}

		return nil
	})
	return uses || err != nil
}
