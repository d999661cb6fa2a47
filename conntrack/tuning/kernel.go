package tuning

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/conntrack"
)

// sysctlDir has the settings of the calling thread's network namespace.
const sysctlDir = "/proc/sys/net/netfilter"

// cpuList has the CPUs of the machine. A process may be allowed fewer.
const cpuList = "/sys/devices/system/cpu/present"

// readSettings reads the settings that the kernel has.
func readSettings(t *conntrack.Table) (map[string]uint64, error) {
	now := map[string]uint64{}
	err := t.Do(func() error {
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

// writeSetting sets one setting.
func writeSetting(t *conntrack.Table, name string, value uint64) error {
	return t.Do(func() error {
		text := strconv.FormatUint(value, 10)
		return os.WriteFile(filepath.Join(sysctlDir, name), []byte(text), 0)
	})
}

// cores returns how many CPUs the machine has. If that is unknown, it returns how many the process
// may use.
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

// countCPUs counts the CPUs in a list such as "0-3,8" (Documentation/admin-guide/cputopology.rst).
func countCPUs(list string) (int, bool) {
	n := 0
	for _, part := range strings.Split(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(part, "-")
		low, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return 0, false
		}
		high := low
		if isRange {
			if high, err = strconv.ParseUint(last, 10, 16); err != nil || high < low {
				return 0, false
			}
		}
		n += int(high - low + 1)
	}
	return n, true
}
