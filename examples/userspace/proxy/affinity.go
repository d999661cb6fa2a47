package proxy

import (
	"container/list"
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// clients remembers which endpoints clients were given, by frontend.
type clients struct {
	max    int
	known  map[client]*list.Element
	recent list.List // of *memory, the one that was used last in front
}

type client struct {
	frontend servicemodel.FrontendKey
	addr     netip.Addr
}

type memory struct {
	client
	endpoint netip.AddrPort
	used     time.Time
}

// init makes c empty, with room for so many clients.
func (c *clients) init(most int) {
	c.max, c.known = most, map[client]*list.Element{}
	c.recent.Init()
}

// recall returns the endpoint that a client was given within the time given.
func (c *clients) recall(who client, within time.Duration, now time.Time) (netip.AddrPort, bool) {
	e := c.known[who]
	if e == nil {
		return netip.AddrPort{}, false
	}
	m := e.Value.(*memory)
	return m.endpoint, now.Sub(m.used) < within
}

// remember notes that a client was given an endpoint now.
func (c *clients) remember(who client, endpoint netip.AddrPort, now time.Time) {
	if e := c.known[who]; e != nil {
		*e.Value.(*memory) = memory{who, endpoint, now}
		c.recent.MoveToFront(e)
		return
	}
	if len(c.known) >= c.max {
		c.forget(c.recent.Back().Value.(*memory).client)
	}
	c.known[who] = c.recent.PushFront(&memory{who, endpoint, now})
}

// forget forgets a client.
func (c *clients) forget(who client) {
	if e := c.known[who]; e != nil {
		c.recent.Remove(e)
		delete(c.known, who)
	}
}
