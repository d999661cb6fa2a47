package main

import (
	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/kernlb/kernlb/servicemodel"
)

// wanted reports whether the state is to be applied. A state without services is applied only with
// -allow-empty, because a directory that is not mounted yet looks the same.
func (w *watcher) wanted(s servicemodel.State) bool {
	if s.Len() > 0 || w.opts.empty {
		w.waits = false
		return true
	}
	if !w.waits {
		w.waits = true
		w.log.Warn("the directory has no service: the kernel stays as it is; with -allow-empty, "+
			"all is removed", "directory", w.dir)
		notify(daemon.SdNotifyReady + "\nSTATUS=waits for services")
	}
	return false
}

// warnUnmatched prints, once, which objects of the manifests belong to no service.
func (w *watcher) warnUnmatched() {
	now := map[string]bool{}
	for _, p := range w.set.Unmatched() {
		text := p.Error()
		if now[text] = true; !w.unmatched[text] {
			w.log.Warn(text)
		}
	}
	w.unmatched = now
}
