package servicemodel

// AffinityText returns the session affinity of a frontend as text, such as "3h0m0s by /24 for the
// service", and "" if it has none.
func (tableView) AffinityText(f *Frontend) string { return f.affinityText() }

// Shares returns the shares of new connections that the slots of a pool are to have, from 0 to 1:
// by weight, or equal ones under [RoundRobin] and [LeastConn], which ignore weights. [DestHash],
// [LocalityLC], [LocalityLCR], [Failover] and [Overflow] have no shares, so the result is nil.
func (tableView) Shares(p *Pool) []float64 {
	switch p.Scheduler {
	case DestHash, LocalityLC, LocalityLCR, Failover, Overflow:
		return nil
	}
	weight := func(s Slot) float64 {
		if p.Scheduler == RoundRobin || p.Scheduler == LeastConn {
			return 1
		}
		return float64(s.Weight)
	}
	total := 0.
	for _, s := range p.Slots {
		total += weight(s)
	}
	shares := make([]float64, len(p.Slots))
	for i, s := range p.Slots {
		shares[i] = weight(s) / total
	}
	return shares
}
