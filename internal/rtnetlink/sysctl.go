package rtnetlink

import "strings"

// Sysctl returns the name of a setting of a link as sysctl -w takes it, where a slash stands for
// each dot in the name of the link. family is "ipv4" or "ipv6".
func Sysctl(family, link, name string) string {
	return "net." + family + ".conf." + strings.ReplaceAll(link, ".", "/") + "." + name
}

// AllowSources returns the command with which rp_filter of a link lets packets in whose route back
// is another one, with a reason if the command is not obvious. all is the value of rp_filter for
// all links: the kernel takes the larger value. With 2, any route back will do, but on a link
// without an address of IPv4, 2 is as strict as 1 (fib_validate_source in net/ipv4/fib_frontend.c).
func AllowSources(link string, all int, addressed bool) string {
	set := "sysctl -w " + Sysctl("ipv4", link, "rp_filter")
	switch {
	case addressed && all == 1:
		return set + "=2 (conf.all is 1, so 0 does not help)"
	case addressed:
		return set + "=2"
	case all > 0:
		set += "=0 " + Sysctl("ipv4", "all", "rp_filter")
	}

	return set + "=0 (the link has no IPv4 address, so 2 does not help)"
}
