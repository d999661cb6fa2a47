//go:build !linux

package conntrack

// netns is a network namespace. There are none here.
type netns struct{}

func openNetNS(int) (*netns, error) { return nil, ErrNotSupported }

func (n *netns) close() error { return nil }

func (n *netns) do(func() error) error { return ErrNotSupported }
