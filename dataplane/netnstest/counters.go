package netnstest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Counters are the network statistics of a namespace by name: those of /proc/net/snmp and
// /proc/net/netstat as "Tcp.RetransSegs" or "TcpExt.TCPTimeouts", those of /proc/net/snmp6 as they
// stand there, "Ip6OutNoRoutes".
type Counters map[string]int64

// Counters reads the namespace's statistics.
func (ns *NS) Counters() (Counters, error) {
	c := Counters{}
	err := ns.Do(func() error {
		for name, parse := range map[string]func(string) error{
			"snmp": c.parseTables, "netstat": c.parseTables, "snmp6": c.parsePairs,
		} {
			// /proc/net is that of the process, not of this thread.
			b, err := os.ReadFile("/proc/thread-self/net/" + name)
			if err != nil {
				return err
			}
			if err := parse(string(b)); err != nil {
				return fmt.Errorf("read %s: %w", name, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("netnstest: %s: read counters: %w", ns.name, err)
	}
	return c, nil
}

// Since returns how much each counter has grown since before; those that have not are left out.
func (c Counters) Since(before Counters) Counters {
	grown := Counters{}
	for name, value := range c {
		if d := value - before[name]; d != 0 {
			grown[name] = d
		}
	}
	return grown
}

// parseTables reads pairs of lines: "Tcp: RetransSegs OutRsts" and "Tcp: 3 4".
func (c Counters) parseTables(text string) error {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for ; len(lines) >= 2; lines = lines[2:] {
		names, values := strings.Fields(lines[0]), strings.Fields(lines[1])
		if len(names) == 0 || len(names) != len(values) || names[0] != values[0] {
			return fmt.Errorf("the lines %q and %q do not match", lines[0], lines[1])
		}
		for i := 1; i < len(names); i++ {
			if err := c.set(strings.TrimSuffix(names[0], ":")+"."+names[i], values[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// parsePairs reads lines of a name and a value.
func (c Counters) parsePairs(text string) error {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			return fmt.Errorf("the line %q is not a name and a value", line)
		}
		if err := c.set(fields[0], fields[1]); err != nil {
			return err
		}
	}
	return nil
}

// set reads a value. Some are signed (Tcp.MaxConn), some exceed 63 bits; those wrap around.
func (c Counters) set(name, value string) error {
	signed, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		unsigned, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		signed = int64(unsigned)
	}
	c[name] = signed
	return nil
}
