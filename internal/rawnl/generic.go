package rawnl

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Numbers of the controller of generic netlink that are needed to find a family
// (include/uapi/linux/genetlink.h).
const (
	familyController  uint16 = 0x10 // GENL_ID_CTRL; other families have greater numbers
	cmdGetFamily      uint8  = 3    // CTRL_CMD_GETFAMILY
	versionController uint8  = 1    // the kernel ignores the version

	attrFamilyID   uint16 = 1 // CTRL_ATTR_FAMILY_ID
	attrFamilyName uint16 = 2 // CTRL_ATTR_FAMILY_NAME
)

// DialGeneric opens a NETLINK_GENERIC socket in the namespace of cfg, for a family of generic
// netlink, for example "IPVS". A kernel without the family asks modprobe for
// "net-pf-16-proto-16-family-" followed by its name. If no module has this alias, DialGeneric asks
// the kernel to load module, unless module is empty. If the family still does not exist, the error
// is an [OpError] with ENOENT.
func DialGeneric(ctx context.Context, family, module string, cfg *Config) (*Conn, error) {
	c, err := dial(protocolGeneric, cfg)
	if err != nil {
		return nil, fmt.Errorf("open a generic netlink connection: %w", err)
	}
	id, err := c.findFamily(ctx, family)
	if module != "" && errors.Is(err, syscall.ENOENT) {
		if err = c.LoadModule(ctx, module); err == nil {
			id, err = c.findFamily(ctx, family)
		}
	}

	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a generic netlink connection: %w", err), c.Close())
	}
	c.family = id
	return c, nil
}

// findFamily asks the controller for the number of a family.
func (c *Conn) findFamily(ctx context.Context, name string) (id uint16, err error) {
	c.family = familyController
	var req Batch
	obj := Object{Verb: "find", Kind: "generic netlink family", Name: name}
	req.Command(cmdGetFamily, versionController, 0, obj)
	req.Text(attrFamilyName, name)
	replies, err := c.Query(ctx, &req)
	if err != nil {
		return 0, err
	}
	for _, m := range replies {
		it := Attrs(m.Attrs)
		for it.Next() {
			if it.Type() == attrFamilyID {
				id = it.NativeU16()
			}
		}

		if err := it.Err(); err != nil {
			return 0, fmt.Errorf("%s: %w", obj.label(0), err)
		}
	}

	if id <= familyController {
		return 0, fmt.Errorf("%s: %w: its number is %d", obj.label(0), ErrMalformed, id)
	}
	return id, nil
}
