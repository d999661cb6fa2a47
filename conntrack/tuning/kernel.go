package tuning

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/sysctls"
)

// sysctlDir is the directory of the settings below /proc/sys.
const sysctlDir = "net/netfilter/"

// readSettings reads the settings that the kernel has.
func readSettings(ctx context.Context, t *conntrack.Table) (map[string]uint64, error) {
	files := sysctls.Files{In: t.Do}
	defer files.Close()
	now := map[string]uint64{}
	for _, name := range settings {
		text, err := files.Read(ctx, sysctlDir+name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if now[name], err = strconv.ParseUint(text, 10, 64); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}

	return now, nil
}

// cores returns the number of CPUs of the machine. If that is unknown, it returns the number of
// CPUs that the process may use, which can be smaller.
func cores() int {
	cpus, err := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*")
	if err != nil || len(cpus) == 0 {
		return runtime.NumCPU()
	}
	return len(cpus)
}
