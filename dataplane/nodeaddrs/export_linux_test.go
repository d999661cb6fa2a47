package nodeaddrs

import "github.com/kernlb/kernlb/internal/rtnl"

// Wrap has a function called around each request to the kernel.
func (s *Source) Wrap(around rtnl.Around) { s.kernel.links.Wrap(around) }
