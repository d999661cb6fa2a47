package kubeproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Socket options, the same in both families, and the structs that they fill in. The name of the
// table comes first.
const (
	getInfo    = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	getEntries = 65 // IPT_SO_GET_ENTRIES, IP6T_SO_GET_ENTRIES

	tableNameLen = 32 // XT_TABLE_MAXNAMELEN
	infoLen      = 84 // struct ipt_getinfo, its last field the size of the entries
	entriesAt    = 40 // in struct ipt_get_entries, after the name, the size and 4 bytes of padding
)

// legacyTries is the number of times that a legacy table is read while another program replaces it.
const legacyTries = 10

// planLegacy reads the legacy tables of the calling thread's network namespace. It does not ask for
// tables that are not listed, because the kernel would create them.
func (p *Plan) planLegacy() error {
	for _, f := range legacyFamilies {
		list, err := os.ReadFile(f.names)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("list the tables of %s: %w", f.program, err)
		}
		for _, table := range strings.Fields(string(list)) {
			chains, err := f.read(table)
			if err != nil {
				return fmt.Errorf("read table %s of %s: %w", table, f.program, err)
			}
			o := owner{kubelet: map[string]bool{f.family: slices.Contains(chains, chainMarkDrop)}}
			chains = slices.DeleteFunc(chains, func(c string) bool {
				return !o.owns(ChainID{TableID{f.family, table}, c})
			})
			if len(chains) == 0 {
				continue
			}
			slices.Sort(chains)
			p.Left = append(p.Left, Left{Object: "table " + table + " of " + f.program,
				Reason: fmt.Sprintf("it is a legacy table, which kernlb does not change: "+
					"kube-proxy --cleanup deletes its %d chains there, such as %s", len(chains),
					strings.Join(chains[:min(len(chains), 3)], ", ")), legacy: true})
		}
	}

	return nil
}

// read returns the user-defined chains of a legacy table.
func (f *legacyFamily) read(table string) ([]string, error) {
	domain, level := unix.AF_INET, unix.SOL_IP
	if f.ipv6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}

	// iptables uses a raw socket, which needs CAP_NET_RAW; the options work on any socket.
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	for range legacyTries {
		info := make([]byte, infoLen)
		copy(info[:tableNameLen-1], table)
		if err = getOption(fd, level, getInfo, info); err != nil {
			return nil, err
		}
		size := binary.NativeEndian.Uint32(info[infoLen-4:])
		entries := make([]byte, entriesAt+int(size))
		copy(entries[:tableNameLen-1], table)
		binary.NativeEndian.PutUint32(entries[tableNameLen:], size)
		err = getOption(fd, level, getEntries, entries)
		if err == nil {
			return f.chainsOf(entries[entriesAt:])
		}
		if !errors.Is(err, unix.EAGAIN) { // its size has changed
			return nil, err
		}
	}

	return nil, err
}

func getOption(fd, level, option int, data []byte) error {
	n := uint32(len(data))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&data[0])), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return os.NewSyscallError("getsockopt", errno)
	}
	return nil
}

// The legacy tables of iptables are not part of nf_tables. With iptables-legacy, the kernel reads
// and writes each table as a whole, by socket options. This package only reads them, because other
// tools replace these tables under a lock file, and a write by this package could undo their
// changes.

// legacyFamily is a family of legacy tables: struct ipt_entry and struct ip6t_entry
// (include/uapi/linux/netfilter_ipv4/ip_tables.h, netfilter_ipv6/ip6_tables.h).
type legacyFamily struct {
	family  string // of the same tables in nf_tables
	program string
	names   string // file with the names of the existing tables
	ipv6    bool
	offsets int // of target_offset in an entry; next_offset is 2 bytes later
}

var legacyFamilies = []legacyFamily{
	{"ip", "iptables-legacy", "/proc/thread-self/net/ip_tables_names", false, 88},
	{"ip6", "ip6tables-legacy", "/proc/thread-self/net/ip6_tables_names", true, 140},
}

// Sizes and names in struct xt_entry_target and struct xt_error_target
// (include/uapi/linux/netfilter/x_tables.h).
const (
	targetName    = 2 // where its name is
	targetNameLen = 29
	targetLen     = 32 // the name of a chain follows, in the entry that begins a chain
	chainNameLen  = 30
	errorTarget   = "ERROR" // the target of an entry that begins a chain
)

// chainsOf returns the names of the user-defined chains in the entries of a legacy table.
func (f *legacyFamily) chainsOf(entries []byte) ([]string, error) {
	var chains []string
	text := func(b []byte) string {
		s, _, _ := strings.Cut(string(b), "\x00")
		return s
	}

	for len(entries) > 0 {
		if len(entries) < f.offsets+4 {
			return nil, fmt.Errorf("an entry of %d bytes", len(entries))
		}
		target := int(binary.NativeEndian.Uint16(entries[f.offsets:]))
		next := int(binary.NativeEndian.Uint16(entries[f.offsets+2:]))
		if next > len(entries) || target+targetLen > next || target < f.offsets {
			return nil, fmt.Errorf("an entry of %d bytes with its target at %d", next, target)
		}
		t := entries[target:next]
		if text(t[targetName:targetName+targetNameLen]) == errorTarget &&
			len(t) >= targetLen+chainNameLen {
			chains = append(chains, text(t[targetLen:targetLen+chainNameLen]))
		}

		entries = entries[next:]
	}

	return chains, nil
}
