package nodeaddrs

import "github.com/kernlb/kernlb/internal/rtnetlink"

// Wrap makes each request to the kernel call a function around it.
func (s *Source) Wrap(around rtnetlink.Around) { s.kernel.links.Wrap(around) }
