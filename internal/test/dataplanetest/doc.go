// Package dataplanetest is the suite behind the public package of the same name, and further tests
// of whole backends that only this module's own backends run: programs that are killed, calls to
// the kernel that fail, several writers, upgrades.
package dataplanetest
