package nftables

import (
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/settings"
	"github.com/kernlb/kernlb/servicemodel"
)

const settingsHaveFirst = 1 // the number of the first setting

// writeSettings writes the elements of the settings.
func (w *writer) writeSettings(r servicemodel.Rules, to sink) {
	for i, line := range settings.Lines(layoutNumber, r) {
		w.ud = nft.AppendComment(w.ud[:0], line)
		to(setSettings, nft.Elem{Key: nft.Native32(uint32(i + settingsHaveFirst)),
			UserData: w.ud})
	}
}
