package main

import "maps"

// changes are the files of a directory that changed.
type changes struct {
	all   bool
	names map[string]bool
}

// none reports whether nothing changed.
func (c *changes) none() bool { return !c.all && len(c.names) == 0 }

// add adds other changes.
func (c *changes) add(o changes) {
	c.all = c.all || o.all
	if c.names == nil {
		c.names = map[string]bool{}
	}
	maps.Copy(c.names, o.names)
}
