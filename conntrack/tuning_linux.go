package conntrack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// sysctlDir: what lies below /proc/sys/net is looked up in the network namespace of the calling
// thread (net_ctl_header_lookup in net/sysctl_net.c).
const sysctlDir = "/proc/sys/net/netfilter"

// eventsSetting: 0 is never, 1 always, 2 (since Linux 5.19, and its default) for flows that begin
// while somebody listens.
const eventsSetting = "nf_conntrack_events"

// cpuList has the CPUs of the machine, which a process may be allowed fewer of.
const cpuList = "/sys/devices/system/cpu/present"

// readSettings reads those settings that the kernel has.
func (t *Table) readSettings() (map[string]uint64, error) {
	now := map[string]uint64{}
	err := t.ns.Do(func() error {
		for _, name := range settings {
			text, err := os.ReadFile(filepath.Join(sysctlDir, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if now[name], err = strconv.ParseUint(strings.TrimSpace(string(text)), 10,
				64); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
	return now, err
}

// checkEvents returns [ErrNoEvents] unless the kernel makes events where somebody listens.
func (t *Table) checkEvents() error {
	return t.ns.Do(func() error {
		text, err := os.ReadFile(filepath.Join(sysctlDir, eventsSetting))
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", ErrNoEvents, err)
		case strings.TrimSpace(string(text)) == "0":
			return fmt.Errorf("%w: %s is 0", ErrNoEvents, eventsSetting)
		}
		return nil
	})
}

// writeSetting sets one setting.
func (t *Table) writeSetting(name string, value uint64) error {
	return t.ns.Do(func() error {
		return os.WriteFile(filepath.Join(sysctlDir, name), []byte(strconv.FormatUint(value, 10)), 0)
	})
}

// cores returns the number of CPUs of the machine, and those of the process if that cannot be told.
func cores() int {
	text, err := os.ReadFile(cpuList)
	if err != nil {
		return runtime.NumCPU()
	}
	if n, ok := countCPUs(string(text)); ok {
		return n
	}
	return runtime.NumCPU()
}
