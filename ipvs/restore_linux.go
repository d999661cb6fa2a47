package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"syscall"

	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// restore sets tunables to their earlier values, unless another program may rely on the present
// ones. wanted are the values in the configuration. foreign says that other programs have virtual
// servers.
func (k *kernel) restore(ctx context.Context, l []tunable, wanted map[string]string, foreign bool,
	log *slog.Logger) error {
	if len(l) == 0 {
		return nil
	}
	others, err := k.othersTunables(ctx)
	if err != nil {
		return err
	}
	for _, t := range l {
		now, err := k.readTunables(ctx, map[string]string{t.name: ""})
		if errors.Is(err, fs.ErrNotExist) || err == nil && now[t.name] == t.value {
			continue
		}
		if err != nil {
			return err
		}
		why, err := k.reliedOn(ctx, t.name, others, foreign)
		if err != nil {
			return err
		}
		if why == "" && setByOthers(t.name, now[t.name], wanted) {
			why = "somebody else has set it since"
		}
		if why != "" {
			log.Info("tunable is left as it is", logkey.Backend, Name, logkey.Instance,
				k.table, logkey.Tunable, tunableText(t.name), logkey.Is, now[t.name], logkey.Was,
				t.value, logkey.Reason, why)
			continue
		}
		if err := k.setTunables(ctx, []tunable{t}); err != nil {
			return err
		}
	}
	return nil
}

// setByOthers reports whether a tunable does not have the value that we have set. Our value of a
// timeout is known only as long as the configuration has it.
func setByOthers(name, now string, wanted map[string]string) bool {
	if ours, ok := sysctls(true)[name]; ok {
		return now != ours
	}
	ours, ok := wanted[name]
	return ok && now != ours
}

// reliedOn says why another program may rely on the value of a tunable. It is empty if there is no
// sign of it. others are the tunables that other instances have recorded.
func (k *kernel) reliedOn(ctx context.Context, name string, others map[string]string,
	foreign bool) (why string, err error) {
	if _, ok := others[name]; ok {
		return "another instance needs it", nil
	}
	switch {
	case ipvsTunable(name) && foreign:
		return "there are virtual servers of others", nil
	case name == sysctlForward:
		forwards, err := k.othersForward(ctx)
		if forwards {
			why = "others have rules about forwarded packets"
		}
		return why, err
	}
	return "", nil
}

// othersTunables returns the earlier values of tunables that other instances have recorded.
func (k *kernel) othersTunables(ctx context.Context) (map[string]string, error) {
	var req rawnl.Batch
	req.Message(rawnl.SubsysNFTables, nft.MsgGetTable, 0, nft.IPv4.NFProto, 0,
		rawnl.Object{Verb: "read", Kind: "tables"})
	var tables []string
	err := k.nf.DumpOwn(ctx, &req, func(m rawnl.Message) error {
		it := rawnl.Attrs(m.Attrs)
		for it.Next() {
			if it.Type() == nft.AttrTableName && it.Text() != k.table {
				tables = append(tables, it.Text())
			}
		}
		return it.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("look for other instances: %w", err)
	}
	all := map[string]string{}
	for _, t := range tables {
		elems, err := readElements(ctx, nft.Query{Conn: k.nf, Family: nft.IPv4, Table: t},
			setSettings)
		if errors.Is(err, syscall.ENOENT) || errors.Is(err, errMisread) {
			continue // not an instance's
		}
		if err != nil {
			return nil, fmt.Errorf("look for other instances: %w", err)
		}
		_, recorded, _ := parseSettings(elems)
		maps.Copy(all, recorded)
	}
	return all, nil
}

// Families of base chains that see forwarded packets of IP.
const (
	protoInet = 1  // NFPROTO_INET
	protoIPv4 = 2  // NFPROTO_IPV4
	protoIPv6 = 10 // NFPROTO_IPV6
)

// othersForward reports whether another program has rules about forwarded packets: a firewall, or a
// program that runs containers. Such a program found ip_forward at 1, and may have left it so.
func (k *kernel) othersForward(ctx context.Context) (bool, error) {
	if k.usesIptables() {
		return true, nil
	}
	var req rawnl.Batch
	req.Message(rawnl.SubsysNFTables, nft.MsgGetChain, 0, 0, 0,
		rawnl.Object{Verb: "look for forwarded packets in", Kind: "chains"})
	found := false
	err := k.nf.DumpOwn(ctx, &req, func(m rawnl.Message) error {
		c, err := nft.DecodeChain(m.Attrs)
		ip := m.Family == protoInet || m.Family == protoIPv4 || m.Family == protoIPv6
		if err == nil && ip && c.Table != k.table && c.Type != "" && c.Hook == nft.HookForward {
			found = true
		}
		return err
	})
	return found, err
}

// usesIptables reports whether x_tables has any tables.
func (k *kernel) usesIptables() (uses bool) {
	err := k.ns.Do(func() error {
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
