package rtnetlink

import "github.com/vishvananda/netlink/nl"

// Socket returns the socket of a.
func (a *Addresses) Socket() *nl.NetlinkSocket { return a.socket }
