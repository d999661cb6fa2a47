package rtnetlink

import (
	"encoding/binary"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Setting has settings of a link for one family.
type Setting struct {
	// Link is the index of the link, or [AllLinks].
	Link int
	// Forwarding says whether packets that arrive on the link are forwarded.
	Forwarding bool
	// ReversePath is the sysctl rp_filter, which only IPv4 has.
	ReversePath int
}

// AllLinks is [Setting.Link] of the settings "all" (NETCONFA_IFINDEX_ALL).
const AllLinks = -1

// Attributes of RTM_NEWNETCONF (include/uapi/linux/netconf.h).
const (
	netconfLink        = 1
	netconfForwarding  = 2
	netconfReversePath = 3
)

// netconfmsg is struct netconfmsg.
type netconfmsg struct{ family uint8 }

func (m netconfmsg) Len() int { return unix.NLMSG_ALIGNTO }

func (m netconfmsg) Serialize() []byte { return []byte{m.family, 0, 0, 0} }

// Settings lists the settings of all links for a family.
func (c *Conn) Settings(family int) (l []Setting, err error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETNETCONF, unix.NLM_F_DUMP)
	req.AddData(netconfmsg{uint8(family)})
	bodies, err := c.Execute(req, unix.RTM_NEWNETCONF)
	if err != nil {
		return nil, err
	}
	for _, body := range bodies {
		attrs, err := nl.ParseRouteAttr(body[min(unix.NLMSG_ALIGNTO, len(body)):])
		if err != nil {
			return nil, err
		}
		var s Setting
		for _, a := range attrs {
			if len(a.Value) != 4 {
				continue
			}
			v := int(int32(binary.NativeEndian.Uint32(a.Value)))
			switch a.Attr.Type {
			case netconfLink:
				s.Link = v
			case netconfForwarding:
				s.Forwarding = v != 0
			case netconfReversePath:
				s.ReversePath = v
			}
		}

		l = append(l, s)
	}

	return l, nil
}

// NeighList lists the neighbours of all links, in both families.
func (c *Conn) NeighList() ([]netlink.Neigh, error) {
	return ask(c, true, func() ([]netlink.Neigh, error) {
		return c.handle.NeighList(0, netlink.FAMILY_ALL)
	})
}
