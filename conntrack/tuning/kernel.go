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

// cores returns how many CPUs the machine has. If that is unknown, it returns how many the process
// may use, which can be fewer.
func cores() int {
	cpus, err := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*")
	if err != nil || len(cpus) == 0 {
		return runtime.NumCPU()
	}
	return len(cpus)
}
