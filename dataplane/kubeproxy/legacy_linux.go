package kubeproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
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

// legacyTries is how often a legacy table is read while another program replaces it.
const legacyTries = 10

// planLegacy reads the legacy tables of the calling thread's network namespace. It does not ask for
// tables that are not listed, because the kernel would make them.
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
			p.leaveLegacy(&f, table, chains)
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

// getOption is getsockopt(2).
func getOption(fd, level, option int, data []byte) error {
	n := uint32(len(data))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&data[0])), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return os.NewSyscallError("getsockopt", errno)
	}
	return nil
}
