package nftables

import (
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"

	"github.com/kernlb/kernlb/servicemodel"
)

const settingsHaveFirst = 1 // the number of the first setting

// writeSettings writes the elements of the settings. localnet is the value of the sysctl
// route_localnet before it was needed.
func (w *writer) writeSettings(r servicemodel.Rules, localnet bool, to sink) {
	lines := rendering.Settings(layoutNumber, r)
	if rendering.WantsRouteLocalnet(&r) {
		lines = append(lines, rendering.RouteLocalnetLine(localnet))
	}
	for i, line := range lines {
		w.ud = nft.AppendComment(w.ud[:0], line)
		to(setSettings, nft.Elem{Key: nft.Native32(uint32(i + settingsHaveFirst)),
			UserData: w.ud})
	}
}
