package nftables

import (
	"github.com/kernlb/kernlb/internal/loopback"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/settings"
	"github.com/kernlb/kernlb/servicemodel"
)

const settingsHaveFirst = 1 // the number of the first setting

// writeSettings writes the elements of the settings. localnet is what the sysctl route_localnet was
// before something answered at loopback addresses.
func (w *writer) writeSettings(r servicemodel.Rules, localnet bool, to sink) {
	lines := settings.Lines(layoutNumber, r)
	if loopback.Wanted(&r) {
		lines = append(lines, loopback.Line(localnet))
	}
	for i, line := range lines {
		w.ud = nft.AppendComment(w.ud[:0], line)
		to(setSettings, nft.Elem{Key: nft.Native32(uint32(i + settingsHaveFirst)),
			UserData: w.ud})
	}
}
