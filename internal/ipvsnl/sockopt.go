package ipvsnl

// Socket options of IPVS that tell what generic netlink does not, or at a fraction of the cost.
// They are of level IPPROTO_IP, need CAP_NET_ADMIN, and know IPv4 only. A kernel refuses a buffer
// that is not as long as its beginning says, and logs that.
const (
	// IP_VS_SO_GET_SERVICES: all services, each with the number of its destinations
	GetServices = 64 + 1024 + 64 + 2
	// IP_VS_SO_GET_DESTS: the destinations of one service
	GetDestinations = GetServices + 2
)
