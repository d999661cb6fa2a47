package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/threadns"
)

// sysctlFiles are open files of sysctls, by name. A file belongs to the namespace in which it was
// opened.
type sysctlFiles map[string]*os.File

func (s sysctlFiles) close() {
	for _, f := range s {
		f.Close()
	}
}

// read reads a sysctl through a file that stays open, so that no thread has to enter the namespace.
// The file is opened again if its module was loaded again.
func (s sysctlFiles) read(ns *threadns.NS, name string) (string, error) {
	var buf [64]byte
	for {
		f, known := s[name]
		if !known {
			err := ns.Do(func() (err error) {
				f, err = os.Open("/proc/sys/" + name)
				return err
			})
			if err != nil {
				return "", fmt.Errorf("read sysctl %s: %w", name, err)
			}
			s[name] = f
		}
		l, err := f.ReadAt(buf[:], 0)
		if l > 0 {
			return strings.TrimSpace(string(buf[:l])), nil
		}
		f.Close()
		delete(s, name)
		if !known {
			return "", fmt.Errorf("read sysctl %s: %w", name, err)
		}
	}
}

// readTunables reads the named tunables.
func (k *kernel) readTunables(ctx context.Context, names map[string]string) (map[string]string,
	error) {
	values := map[string]string{}
	timeouts := false
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if isTimeout(name) {
			timeouts = true
			continue
		}
		v, err := k.sysctls.read(k.ns, name)
		if err != nil {
			return nil, err
		}
		values[name] = v
	}
	if !timeouts {
		return values, nil
	}
	t, err := k.vs.Timeouts(ctx)
	if err != nil {
		return nil, fmt.Errorf("read timeouts: %w", err)
	}
	for name, v := range timeoutValues(t) {
		if _, asked := names[name]; asked {
			values[name] = v
		}
	}
	return values, nil
}

// setTunables sets tunables. A sysctl that does not exist has no effect, so it need not be set.
func (k *kernel) setTunables(ctx context.Context, l []tunable) error {
	timeouts, sysctls := splitTunables(l)
	if len(timeouts) > 0 {
		if err := k.vs.SetTimeouts(ctx, timeoutsOf(timeouts)); err != nil {
			return fmt.Errorf("set timeouts: %w", err)
		}
	}
	if len(sysctls) == 0 {
		return nil
	}
	return k.ns.Do(func() error {
		for _, t := range sysctls {
			err := os.WriteFile("/proc/sys/"+t.name, []byte(t.value), 0)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("set sysctl %s: %w", t.name, err)
			}
		}
		return nil
	})
}

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
		ours, known := sysctls(true)[t.name]
		if !known { // our value of a timeout is known only as long as the configuration has it
			ours, known = wanted[t.name]
		}
		_, needed := others[t.name]
		why := ""
		switch {
		case needed:
			why = "another instance needs it"
		case foreign && (isTimeout(t.name) || strings.HasPrefix(t.name, sysctlIPVS)):
			why = "there are virtual servers of others"
		case known && now[t.name] != ours:
			why = "somebody else has set it since"
		case t.name == sysctlForward:
			forwards, err := k.othersForward(ctx)
			if err != nil {
				return err
			}
			if forwards {
				why = "others have rules about forwarded packets"
			}
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
