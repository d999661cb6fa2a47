package main

import "maps"

// changes are the files of a directory that changed.
type changes struct {
	all   bool
	names map[string]bool
}

// add adds other changes.
func (c *changes) add(o changes) {
	c.all = c.all || o.all
	if c.names == nil {
		c.names = map[string]bool{}
	}
	maps.Copy(c.names, o.names)
}
