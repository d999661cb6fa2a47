package ipvsnl

import "fmt"

// Info describes the IPVS of the running kernel (IPVS_CMD_GET_INFO).
type Info struct {
	Version Version
	// ConnTableSize is the number of buckets of the connection table. Kernels that have a table for
	// each network namespace (7.2 has) let it grow, and have none, so 0, until there has been a
	// service.
	ConnTableSize uint32
}

// Version is the version of IPVS, IP_VS_VERSION_CODE. It has been 1.2.1 since 2005 and says nothing
// about what the kernel can do.
type Version uint32

// String returns the version as NVERSION in include/uapi/linux/ip_vs.h takes it apart, for example
// "1.2.1".
func (v Version) String() string {
	return fmt.Sprintf("%d.%d.%d", v>>16&0xff, v>>8&0xff, v&0xff)
}

// Attributes of the reply to IPVS_CMD_GET_INFO, in the kernel's order.
const (
	infoAttrVersion       uint16 = iota + 1 // IPVS_INFO_ATTR_VERSION
	infoAttrConnTableSize                   // IPVS_INFO_ATTR_CONN_TAB_SIZE
)

// appendInfo appends the attributes of i.
func appendInfo(b []byte, i Info) []byte {
	b = appendU32(b, infoAttrVersion, uint32(i.Version))
	return appendU32(b, infoAttrConnTableSize, i.ConnTableSize)
}

// decodeInfo decodes the attributes of IPVS_CMD_SET_INFO.
func decodeInfo(data []byte) (i Info, err error) {
	a := attrs{what: "info", rest: data}
	for a.next() {
		switch a.typ {
		case infoAttrVersion:
			i.Version = Version(a.u32())
		case infoAttrConnTableSize:
			i.ConnTableSize = a.u32()
		}
	}
	return i, a.err
}
