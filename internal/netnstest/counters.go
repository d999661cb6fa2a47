package netnstest

// Counters are the network statistics of a namespace by name: those of /proc/net/snmp and /proc/net/netstat as
// "Tcp.RetransSegs" or "TcpExt.TCPTimeouts", those of /proc/net/snmp6 as they stand there, "Ip6OutNoRoutes".
type Counters map[string]int64

// Counters reads the namespace's statistics.
func (ns *NS) Counters() (Counters, error) {
	return nil, ErrNotSupported
}

// Since returns how much each counter has grown since before; counters that have not are left out.
func (c Counters) Since(before Counters) Counters {
	grown := Counters{}
	for name, value := range c {
		if d := value - before[name]; d != 0 {
			grown[name] = d
		}
	}
	return grown
}
