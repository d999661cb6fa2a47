package ipvsnl

// familyName is the name of the generic netlink family of IPVS (IPVS_GENL_NAME).
const familyName = "IPVS"

// The part of the generic netlink controller that is needed to find a family
// (include/uapi/linux/genetlink.h).
const (
	ctrlNewFamily      uint8  = 1  // CTRL_CMD_NEWFAMILY: the reply
	ctrlGetFamily      uint8  = 3  // CTRL_CMD_GETFAMILY
	ctrlAttrFamilyID   uint16 = 1  // CTRL_ATTR_FAMILY_ID
	ctrlAttrFamilyName uint16 = 2  // CTRL_ATTR_FAMILY_NAME
	familyNameLimit           = 15 // GENL_NAMSIZ, with the NUL
)

// appendGetFamily appends the request for the number of the IPVS family. A kernel that does not
// have it asks modprobe for "net-pf-16-proto-16-family-IPVS" before it answers (ctrl_getfamily in
// net/netlink/genetlink.c).
func appendGetFamily(b []byte) []byte {
	mark := len(b)
	b = appendFrame(b, flagRequest, ctrlGetFamily)
	b = appendText(b, ctrlAttrFamilyName, familyName)
	return endMessage(b, mark)
}

// appendFamily appends the attributes of the controller's reply.
func appendFamily(b []byte, name string, id uint16) []byte {
	b = appendText(b, ctrlAttrFamilyName, name)
	return appendU16(b, ctrlAttrFamilyID, id)
}

// decodeFamily decodes the attributes of the controller's reply.
func decodeFamily(data []byte) (name string, id uint16, err error) {
	a := attrs{what: "generic netlink family", rest: data}
	for a.next() {
		switch a.typ {
		case ctrlAttrFamilyID:
			id = a.u16()
		case ctrlAttrFamilyName:
			name = a.text(familyNameLimit)
		}
	}
	return name, id, a.err
}
